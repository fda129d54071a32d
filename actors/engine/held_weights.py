"""Which chunks of weights an engine holds, so that what it has already need not be sent to it again.

A plain record of what was loaded: a new one is made before an update, and takes the place of the old one when the update
is through. Invariant: an identity in it stands for the very bits that the engine serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rl_system.records import WeightChunk
from rl_system.training.parameter_files import Shapes
from rl_system.training.weights import Checksum

Chunk = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Contents:
    """Of one chunk."""

    shapes: Shapes
    checksum: Checksum

    @classmethod
    def of(cls, arrays: Chunk, verify: bool) -> Contents:
        checksum = Checksum()
        if verify:
            checksum.add(arrays)
        return cls({name: array.shape for name, array in arrays.items()}, checksum)


class HeldWeights:
    """An engine of which nothing is known yet holds no chunk. verify: whether checksums are computed."""

    def __init__(self, verify: bool) -> None:
        self.verify = verify
        self._by_identity: dict[str, Contents] = {}
        self._unnamed: list[Contents] = []

    def missing(self, chunks: Sequence[WeightChunk]) -> list[WeightChunk]:
        """Those of `chunks` that have to be fetched."""
        return [chunk for chunk in chunks if chunk.identity not in self._by_identity]

    def after(self, chunks: Sequence[WeightChunk], arrived: Sequence[Chunk]) -> HeldWeights:
        """What the engine will hold once it has all of `chunks`. arrived: the values of those `missing`, in order."""
        values = iter(arrived)
        result = HeldWeights(self.verify)
        for chunk in chunks:
            contents = self._by_identity.get(chunk.identity) or Contents.of(next(values), self.verify)
            if chunk.identity:
                result._by_identity[chunk.identity] = contents
            else:
                result._unnamed.append(contents)
        return result

    def shapes(self) -> Shapes:
        """Of all tensors, by name."""
        return {name: shape for contents in self._all() for name, shape in contents.shapes.items()}

    def checksum(self) -> str:
        """As `Weights.checksum`."""
        total = Checksum()
        for contents in self._all():
            total.merge(contents.checksum)
        return total.hexdigest()

    def _all(self) -> list[Contents]:
        return [*self._by_identity.values(), *self._unnamed]
