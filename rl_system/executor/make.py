"""From configuration to an executor."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from rl_system.config.executor import ExecutorConfig
from rl_system.executor.attention.kernels import CpuFlashKernel
from rl_system.executor.dense import DenseExecutor
from rl_system.executor.gradients import gradient_buffers
from rl_system.executor.head import LogprobHead, ModuleHead
from rl_system.executor.interface import Executor
from rl_system.executor.models import check_supported
from rl_system.executor.tree import TreeExecutor


def make_executor(
    model: PreTrainedModel, config: ExecutorConfig, *, temperature: float = 1.0, head: nn.Module | None = None
) -> Executor:
    """The executor that `config.method` names, for a causal language model.

    temperature: divides the logits, as in the sampler. head: None for logprobs of the model's own output embeddings; a
    module from [rows, hidden size] to [rows, 1] for a critic's values, read at the row that predicts each trained token.
    Raises `UserError` for models whose attention is not plain causal softmax.
    """
    check_supported(model)
    gradients = gradient_buffers(model)
    if head is None:
        weight = model.get_output_embeddings().weight
        outputs = LogprobHead(weight, gradients, temperature, config.head_chunk)
    else:
        gradient_buffers(head)
        outputs = ModuleHead(head, config.head_chunk)
    if config.method in ("dense", "dense_ckpt"):
        return DenseExecutor(model, outputs, recompute=config.method == "dense_ckpt")
    return TreeExecutor(
        model, outputs, CpuFlashKernel(), block_tokens=config.block_tokens, retain_tokens=config.retain_tokens
    )
