"""All trainable parameters of a model as one vector, and their gradients as another.

The parameters become views into `values`, their gradients views into `gradients`: a step reduces, clips and updates
long contiguous stretches instead of hundreds of small tensors, and a rank's share of the optimizer is a set of slices.
Parameters that share storage (tied embeddings) appear once. Each parameter starts at a multiple of `ALIGNMENT`
elements; elements between parameters are zero and stay zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

ALIGNMENT = 64
"""Elements: 128 bytes in bfloat16, a cache line or more in every dtype."""
BUCKET_ELEMENTS = 1 << 25
"""Elements of one collective: 128 MiB of float32, long enough for full bandwidth and far below 32-bit counts."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies: elements [start, stop) of the vector. decayed: whether weight decay applies."""

    name: str
    start: int
    stop: int
    decayed: bool


class FlatParameters:
    """The vectors of `model`, whose length suits `shards` equal shares of every bucket.

    values: compute dtype; gradients: float32 (float64 for a float64 model), zero at the start; both [length].
    """

    def __init__(self, model: nn.Module, shards: int = 1) -> None:
        self.shards = shards
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        first = next(iter(parameters.values()))
        if any(p.dtype != first.dtype or p.device != first.device for p in parameters.values()):
            raise ValueError("trainable parameters differ in dtype or device; the flat vector needs one of each")
        self.slots: list[Slot] = []
        end = 0
        for name, parameter in parameters.items():
            stop = end + parameter.numel()
            self.slots.append(Slot(name, end, stop, decayed=parameter.ndim >= 2))
            end = _round_up(stop, ALIGNMENT)
        self.length = _round_up(end, ALIGNMENT * shards)
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


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
