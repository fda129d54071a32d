"""New parameters on their way to the rollout workers. When `publish` returns, the trainer may change its own."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_system.records import WeightChunk, Weights
from rl_system.training.complete_directory import complete_directory
from rl_system.training.model_files import save_parameters
from rl_system.training.weights import Checksum, as_numpy, load_units

COMPARED_BYTES = 1 << 20
"""Stretch of a tensor that is compared at once: where one differs, the rest need not be looked at."""

Units = list[list[str]]


class ChunkPublisher:
    """Publishes a model again and again, and hands over anew only what has other bits than the last time.

    put: copies a chunk and returns what stands for it (an object reference); get: that copy, to compare with. chunk_bytes:
    of one chunk, unless a single load unit is larger.

    Invariants: a chunk holds whole load units. Two chunks with one identity hold the same bits.
    """

    def __init__(
        self,
        chunk_bytes: int,
        verify: bool,
        put: Callable[[dict[str, np.ndarray]], Any],
        get: Callable[[Any], Mapping[str, np.ndarray]],
    ) -> None:
        self.chunk_bytes, self.verify, self._put, self._get = chunk_bytes, verify, put, get
        self._origin = secrets.token_hex(4)
        self._chunks_put = 0
        self._current: list[_Put] = []

    def publish(self, tensors: Mapping[str, torch.Tensor], version: int) -> Weights:
        """All of `tensors`, a model as `saved_tensors` gives it, most of it perhaps as chunks that were published before."""
        kept: list[_Put] = []
        changed: Units = []
        beside: Units = []
        """What did not change, of chunks in which something did. In chunks of its own from now on."""
        if not self._current:
            changed = load_units(tensors)
        for each in self._current:
            moved = self._moved(each, tensors)
            if moved:
                changed += moved
                beside += [unit for unit in each.units if unit not in moved]
            else:
                kept.append(each)
        new = [self._copied(units, tensors) for group in (changed, beside) for units in self._cut(group, tensors)]
        self._current = kept + new
        checksum = Checksum()
        for each in self._current:
            checksum.merge(each.checksum)
        chunks = [each.chunk for each in self._current]
        return Weights(version, chunks, checksum.hexdigest() if self.verify else "")

    def _moved(self, put: _Put, tensors: Mapping[str, torch.Tensor]) -> Units:
        """The units of a chunk that are not what they were."""
        old = self._get(put.chunk.content)
        return [unit for unit in put.units if not all(same_bits(as_numpy(tensors[name]), old[name]) for name in unit)]

    def _cut(self, units: Units, tensors: Mapping[str, torch.Tensor]) -> Iterator[Units]:
        """Into chunks."""
        chunk: Units = []
        size = 0
        for unit in units:
            bytes_of_unit = sum(tensors[name].numel() * tensors[name].element_size() for name in unit)
            if chunk and size + bytes_of_unit > self.chunk_bytes:
                yield chunk
                chunk, size = [], 0
            chunk.append(unit)
            size += bytes_of_unit
        if chunk:
            yield chunk

    def _copied(self, units: Units, tensors: Mapping[str, torch.Tensor]) -> _Put:
        arrays = {name: as_numpy(tensors[name]) for unit in units for name in unit}
        content = self._put(arrays)
        checksum = Checksum()
        if self.verify:
            checksum.add(arrays)
        self._chunks_put += 1
        return _Put(WeightChunk(content, f"{self._origin}-{self._chunks_put}"), units, checksum)


@dataclass(slots=True)
class _Put:
    """A chunk that is part of what was published last."""

    chunk: WeightChunk
    units: Units
    checksum: Checksum


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays of one shape and dtype hold the same bytes: NaN equals itself, 0 and −0 differ."""
    a, b = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other))
    return all(
        np.array_equal(a[at : at + COMPARED_BYTES], b[at : at + COMPARED_BYTES]) for at in range(0, len(a), COMPARED_BYTES)
    )


def publish_directory(tensors: Mapping[str, torch.Tensor], version: int, parent: Path) -> Weights:
    """Write a model, as `saved_tensors` gives it, as the safetensors files of `parent/version_<version>`, complete or absent.

    The version before stays, for workers that are still reading it; older ones are removed.
    """
    directory = parent / f"version_{version}"
    with complete_directory(directory) as staging:
        save_parameters(tensors, staging)
    for old in parent.glob("version_*"):
        number = old.name.removeprefix("version_")
        if number.isdigit() and int(number) < version - 1:
            shutil.rmtree(old)
    return Weights(version, directory=str(directory))
