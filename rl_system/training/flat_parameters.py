"""All trainable parameters of a model as one vector, and their gradients as another.

The parameters become views into `values`, their gradients views into `gradients`: a step reduces, clips and updates
long contiguous stretches instead of hundreds of small tensors, and a rank's share of the optimizer is a set of slices.
Parameters that share storage (tied embeddings) appear once. Each parameter starts at a multiple of `ALIGNMENT`
elements; elements between parameters are zero and stay zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rl_system.training.tensor_parallel import Sharding

ALIGNMENT = 64
"""Elements: 128 bytes in bfloat16, a cache line or more in every dtype."""
BUCKET_ELEMENTS = 1 << 25
"""Elements of one collective: 128 MiB of float32, long enough for full bandwidth and far below 32-bit counts."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies: elements [start, stop) of the vector. decayed: whether weight decay applies. replicated:
    whether each of the ranks that share the model has the whole of it."""

    name: str
    start: int
    stop: int
    decayed: bool
    replicated: bool = True


@dataclass(frozen=True, slots=True)
class Layout:
    """How a vector of at least `elements` elements is dealt out among `shards` shards."""

    elements: int
    shards: int

    @property
    def length(self) -> int:
        """With the padding that makes every bucket divisible."""
        return _round_up(self.elements, ALIGNMENT * self.shards)

    @property
    def buckets(self) -> list[slice]:
        """The vector cut into stretches of one collective each; every length is a multiple of `shards`."""
        size = _round_up(BUCKET_ELEMENTS, ALIGNMENT * self.shards)
        return [slice(start, min(start + size, self.length)) for start in range(0, self.length, size)]

    def shares(self, shard: int) -> list[slice]:
        """What shard `shard` owns: its equal part of every bucket, in order."""
        result = []
        for bucket in self.buckets:
            size = (bucket.stop - bucket.start) // self.shards
            result.append(slice(bucket.start + shard * size, bucket.start + (shard + 1) * size))
        return result


class FlatParameters:
    """The vectors of `model` (of this rank's share, where several ranks share it), whose length suits `shards` equal
    shares of every bucket.

    values: compute dtype; gradients: float32 (float64 for a float64 model), zero at the start; both [length].
    """

    def __init__(self, model: nn.Module, shards: int = 1) -> None:
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        first = next(iter(parameters.values()))
        if any(p.dtype != first.dtype or p.device != first.device for p in parameters.values()):
            raise ValueError("trainable parameters differ in dtype or device; the flat vector needs one of each")
        self.sharding = Sharding.of(model)
        self.slots: list[Slot] = []
        end = 0
        for name, parameter in parameters.items():
            stop = end + parameter.numel()
            replicated = name not in self.sharding.dims
            self.slots.append(Slot(name, end, stop, decayed=parameter.ndim >= 2, replicated=replicated))
            end = _round_up(stop, ALIGNMENT)
        self.layout = Layout(self.slots[-1].stop, shards)
        self.shards, self.length = shards, self.layout.length
        accumulate = torch.float64 if first.dtype == torch.float64 else torch.float32
        self.values = torch.zeros(self.length, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros(self.length, dtype=accumulate, device=first.device)
        self.gradient_of: dict[str, torch.Tensor] = {}
        """By parameter name: its view into `gradients`, in the parameter's shape."""
        for slot, parameter in zip(self.slots, parameters.values(), strict=True):
            view = self.values[slot.start : slot.stop].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            self.gradient_of[slot.name] = self.gradients[slot.start : slot.stop].view(parameter.shape)
            if accumulate == first.dtype:
                parameter.grad = self.gradient_of[slot.name]

    @property
    def buckets(self) -> list[slice]:
        return self.layout.buckets

    def shares(self, shard: int) -> list[slice]:
        return self.layout.shares(shard)


def overlaps(stretch: slice, shares: Sequence[slice]) -> Iterator[tuple[slice, slice]]:
    """What `stretch` of the vector has in common with each of `shares`: where in the vector, and where in their
    concatenation.
    """
    own = 0
    for share in shares:
        start, stop = max(stretch.start, share.start), min(stretch.stop, share.stop)
        if start < stop:
            yield slice(start, stop), slice(own + start - share.start, own + stop - share.start)
        own += share.stop - share.start


def copy_overlaps(
    saved: Any, offset: int, stretch: slice, states: torch.Tensor, shares: Sequence[slice]
) -> None:
    """Copy what `stretch` of the vector, which lies at `offset` of `saved`, has in common with `shares` into `states`,
    their concatenation. saved: anything whose slices are tensors.
    """
    moved = offset - stretch.start
    for where, own in overlaps(stretch, shares):
        states[own].copy_(saved[where.start + moved : where.stop + moved])


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
