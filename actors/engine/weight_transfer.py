"""How new weights get into a running engine: the part that runs inside the engine's own process.

Owns the transfer backend that loads a safetensors file. vLLM's built-in backends move tensors between GPUs; here the
rollout worker puts the weights into a file in shared memory, or finds them in a directory, and this backend maps them.

Invariant: after `finish_weight_update` every kernel sees the new weights, the packed copies that CPU kernels keep
included. A file that does not hold the model's parameters is refused before the model is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

FILE_BACKEND = "safetensors_file"


def backend_of(transport: str) -> str:
    """vLLM's name of the backend behind `weights.transport`."""
    return "nccl" if transport == "nccl" else FILE_BACKEND


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Nothing to set up."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """`paths`: safetensors files that together hold every parameter under its Hugging Face name."""

    paths: list[str]


class FileWeightTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        self.model.load_weights(_tensors_of(update_info.paths))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        refresh_packed_embeddings(self.model)

    def shutdown(self) -> None:
        pass


def refresh_packed_embeddings(model: torch.nn.Module) -> None:
    """Pack the embeddings' weights again for the CPU kernels.

    An output head that is tied to the embedding gets no weights of its own during a reload, so vLLM leaves the packed
    copy that its matrix product uses as it was: logits of the old policy behind a model of the new one.
    """
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)


def _tensors_of(paths: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in map(Path, paths):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a dict)
                yield name, tensors.get_tensor(name)


class WorkerExtension:
    """Mixed into vLLM's worker. Naming it makes the worker import this module, which registers the backend."""


if FILE_BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(FILE_BACKEND, FileWeightTransferEngine)
