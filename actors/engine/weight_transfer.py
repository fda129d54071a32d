"""How new weights get into a running engine through files: the part that runs inside the engine's own process.

Owns the transfer backend that loads safetensors files, of all parameters or of whole layers of them. vLLM's built-in
backends move tensors between GPUs; here the rollout worker puts the weights into a file in shared memory, or finds them
in a directory, and this backend maps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from actors.engine.gloo_transfer import GLOO_BACKEND
from actors.engine.reload import ReloadingEngine

FILE_BACKEND = "safetensors_file"


def backend_of(transport: str) -> str:
    """vLLM's name of the backend behind `weights.transport`."""
    return {"nccl": "nccl", "gloo": GLOO_BACKEND}.get(transport, FILE_BACKEND)


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Nothing to set up."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """`paths`: safetensors files that hold parameters under their Hugging Face names. What vLLM fuses comes together."""

    paths: list[str]


class FileWeightTransferEngine(ReloadingEngine[FileInitInfo, FileUpdateInfo]):
    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        pass

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        self.model.load_weights(_tensors_of(update_info.paths))


def _tensors_of(paths: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in map(Path, paths):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a dict)
                yield name, tensors.get_tensor(name)


class WorkerExtension:
    """Mixed into vLLM's worker. Naming it makes the worker import this module, which registers the backends."""


if FILE_BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(FILE_BACKEND, FileWeightTransferEngine)
