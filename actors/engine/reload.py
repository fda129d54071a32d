"""The part that all of this system's transfer backends share: a model that is loaded anew, layer by layer.

Runs inside the engine's own process. Invariant: after `finish_weight_update` every kernel sees the new weights, the packed
copies that CPU kernels keep included, and layers that got nothing are what they were.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import TInitInfo, TUpdateInfo, WeightTransferEngine
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform


class ReloadingEngine(WeightTransferEngine[TInitInfo, TUpdateInfo]):
    """A backend says where tensors come from: `receive_weights` hands them to `self.model.load_weights`."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)
        self._kernels = take_expert_kernels(self.model)

    def finish_weight_update(self) -> None:
        # It warns of every layer that got nothing; here that is one whose weights did not change.
        with log_level(finalize_layerwise_reload.__module__, logging.ERROR):
            finalize_layerwise_reload(self.model, self.model_config)
        refresh_packed_embeddings(self.model)
        give_back_expert_kernels(self._kernels)

    def shutdown(self) -> None:
        """Nothing to release."""


@contextmanager
def log_level(name: str, level: int) -> Iterator[None]:
    """While this is entered, the logger `name` is silent below `level`."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


Kernels = list[tuple[FusedMoEMethodBase, Any]]


def take_expert_kernels(model: torch.nn.Module) -> Kernels:
    """Have the experts' weights packed again for the CPU kernels as they arrive. Returns what was taken.

    vLLM packs the experts of a layer for the CPU where it makes their kernel, and leaves new weights of a kernel that is
    there as they are: logits of no policy. Without a kernel it makes one, and packs.
    """
    if not current_platform.is_cpu():
        return []
    methods = [getattr(module, "quant_method", None) for module in model.modules()]
    kernels = [(method, method.moe_kernel) for method in methods if isinstance(method, FusedMoEMethodBase)]
    for method, _ in kernels:
        method.moe_kernel = None
    return kernels


def give_back_expert_kernels(kernels: Kernels) -> None:
    """To layers that got no new weights, and so made no new kernel."""
    for method, kernel in kernels:
        method.moe_kernel = method.moe_kernel or kernel


def refresh_packed_embeddings(model: torch.nn.Module) -> None:
    """Pack the embeddings' weights again for the CPU kernels.

    An output head that is tied to the embedding gets no weights of its own during a reload, so vLLM leaves the packed
    copy that its matrix product uses as it was: logits of the old policy behind a model of the new one.
    """
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)
