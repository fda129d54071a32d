"""Parameters on their way out of a trainer: named arrays, in chunks, with a checksum of exactly what was sent.

Trainers and engines agree on the names because both are those of the Hugging Face model's files.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np
import torch
from torch import nn

from rl_system.training.parameter_names import under_saved_names
from rl_system.training.tensor_parallel import Sharding


def export_weights(model: nn.Module, chunk_bytes: int) -> Iterator[dict[str, np.ndarray]]:
    """`as_chunks` of what a checkpoint of `model` holds."""
    return as_chunks(saved_tensors(model), chunk_bytes)


def as_chunks(tensors: Mapping[str, torch.Tensor], chunk_bytes: int) -> Iterator[dict[str, np.ndarray]]:
    """Parameters and saved buffers under their Hugging Face names, in chunks of at most `chunk_bytes`.

    Tensors that share storage (tied embeddings) come once, under the first of their names; a larger tensor is a chunk
    of its own. Arrays keep the dtype (bfloat16 as that of ml_dtypes). On the CPU they are views: whoever takes a chunk
    copies it before the next update. On a device they are copies.
    """
    chunk: dict[str, np.ndarray] = {}
    size = 0
    for name, tensor in tensors.items():
        bytes_of_tensor = tensor.numel() * tensor.element_size()
        if chunk and size + bytes_of_tensor > chunk_bytes:
            yield chunk
            chunk, size = {}, 0
        chunk[name] = as_numpy(tensor)
        size += bytes_of_tensor
    if chunk:
        yield chunk


def saved_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """What a checkpoint of `model` holds, by its names in files: its state without the second names of shared tensors,
    detached.

    Of a model that several ranks share: whole tensors on the CPU, gathered, on the first of them; nothing on the others,
    which all have to call this too.
    """
    sharding = Sharding.of(model)
    if sharding.group.size > 1:
        return under_saved_names(_gathered(own_tensors(model), sharding))
    return under_saved_names(own_tensors(model))


def _gathered(tensors: dict[str, torch.Tensor], sharding: Sharding) -> dict[str, torch.Tensor]:
    result = {}
    for name, tensor in tensors.items():
        whole = sharding.whole(name, tensor)
        if sharding.group.rank == 0:
            result[name] = whole.cpu()
    return result


def own_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Of this rank's share of the model, by the names of its modules; the very tensors."""
    first_names: dict[int, str] = {}
    result: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if first_names.setdefault(id(tensor), name) == name:
            result[name] = tensor.detach()
    return result


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """`tensor` as an array of the same dtype: a view where it lies on the CPU, else a copy."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def load_units(names: Iterable[str]) -> list[list[str]]:
    """`names` in lists that a receiver has to get together: those of one decoder layer, each other one alone.

    Engines fuse parameters of a layer (queries with keys and values, experts with each other); what is fused of old and
    new parts belongs to no policy.
    """
    units: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        number = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts))
        units.setdefault(".".join(parts[: number + 1]), []).append(name)
    return list(units.values())


class Checksum:
    """Sum over arrays of the CRC-32 of name, dtype, shape and bytes: neither order nor chunks matter, parts add up.

    About 4 GB/s on one core.
    """

    def __init__(self) -> None:
        self._total = 0

    def add(self, chunk: Mapping[str, np.ndarray]) -> None:
        for name, array in chunk.items():
            begun = zlib.crc32(f"{name}:{array.dtype.name}:{array.shape}".encode())
            self._total += zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, begun)

    def merge(self, other: Checksum) -> None:
        """Add what `other` covers."""
        self._total += other._total

    def hexdigest(self) -> str:
        """Eight hexadecimal digits."""
        return f"{self._total & 0xFFFFFFFF:08x}"


def weights_checksum(chunks: Iterable[Mapping[str, np.ndarray]]) -> str:
    """`Checksum` of all `chunks`: what a receiver compares with `Weights.checksum`."""
    checksum = Checksum()
    for chunk in chunks:
        checksum.add(chunk)
    return checksum.hexdigest()
