"""From configuration to an executor."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from rl_system.config.executor import ExecutorConfig
from rl_system.executor.attention.cuda import kernel_for_cuda
from rl_system.executor.attention.kernels import CpuFlashKernel
from rl_system.executor.auto import AutoExecutor
from rl_system.executor.dense import DenseExecutor
from rl_system.executor.gradients import gradient_buffers
from rl_system.executor.head import LogprobHead, ModuleHead
from rl_system.executor.host_memory import keep_freed_memory
from rl_system.executor.interface import Executor
from rl_system.executor.leaves import LeavesExecutor
from rl_system.executor.models import check_supported, model_shape
from rl_system.executor.packed import PackedExecutor
from rl_system.executor.tree import TreeExecutor
from rl_system.tree.cost_model import CostModel


def make_executor(
    model: PreTrainedModel, config: ExecutorConfig, *, temperature: float = 1.0, head: nn.Module | None = None
) -> Executor:
    """The executor that `config.method` names, for a causal language model.

    temperature: divides the logits, as in the sampler. head: None for logprobs of the model's own output embeddings; a
    module from [rows, hidden size] to [rows, 1] for a critic's values, read at the row that predicts each trained token.
    Raises `UserError` for models whose attention is not plain causal softmax. On the CPU, memory that this process frees
    stays with it from now on: all of it without a limit on blocks, else a bounded part.
    """
    check_supported(model)
    if model.device.type == "cpu":
        keep_freed_memory(everything=config.block_tokens == 0)
    gradients = gradient_buffers(model)
    if head is None:
        weight = model.get_output_embeddings().weight
        outputs = LogprobHead(weight, gradients, temperature, config.head_chunk)
    else:
        gradient_buffers(head)
        outputs = ModuleHead(head, config.head_chunk)
    cost_model = CostModel(model_shape(model))
    if config.method == "packed":
        return PackedExecutor(model, outputs, cost_model, gradients)
    if config.method == "leaves":
        return LeavesExecutor(model, outputs, cost_model, gradients)
    dense = DenseExecutor(model, outputs, cost_model, gradients, recompute=config.method == "dense_ckpt")
    if config.method in ("dense", "dense_ckpt"):
        return dense
    tree = TreeExecutor(
        model,
        outputs,
        CpuFlashKernel() if model.device.type == "cpu" else kernel_for_cuda(model.dtype, model.device),
        cost_model,
        gradients,
        block_tokens=config.block_tokens,
        retain_tokens=config.retain_tokens,
    )
    return tree if config.method == "tree" else AutoExecutor(tree, dense, cost_model)
