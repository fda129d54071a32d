"""The whole tree packed into one pass with an explicit mask: the common way to share prefixes, as a baseline.

On CUDA the mask is FlexAttention's block mask; elsewhere a boolean [rows, rows] matrix, which limits it to small trees. Its
attention has nothing in common with that of the depth-first executor, so it is also the reference for trees that are too
deep to be run one sequence at a time.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl_system.algorithms.objective import Objective
from rl_system.executor.gradients import GradientBuffers
from rl_system.executor.head import Head
from rl_system.executor.interface import ExecutionReport, StepResult
from rl_system.executor.linears import fast_linears
from rl_system.executor.models import Started, attention
from rl_system.executor.pairs import Evaluation, Fixed, sensitivity
from rl_system.executor.workload import Workload, needed_nodes, prepare
from rl_system.records import TrainBatch
from rl_system.tree.block_plan import plan_blocks
from rl_system.tree.cost_model import CostModel
from rl_system.tree.prefix_tree import PrefixTree, build_tree


class PackedExecutor:
    def __init__(self, model: PreTrainedModel, head: Head, cost_model: CostModel, buffers: GradientBuffers) -> None:
        self.model, self.head, self.cost_model = model, head, cost_model
        self.buffers, self.gradients = buffers, buffers.by_name

    def step(self, batch: TrainBatch, objective: Objective) -> StepResult:
        began = Started(self.model)
        tree, work = self._prepare(batch)
        evaluation = Evaluation(objective, work.table)
        outputs = torch.zeros(work.table.count, dtype=self._dtype, device=self.model.device)
        for block, inputs in zip(work.plan.blocks, work.inputs, strict=True):
            hidden = self._run(tree, work, block.rows())[inputs.predicting][inputs.predicted_by]
            leaf = hidden.detach()
            gradient = evaluation
            if objective.coupled:
                gradient = Fixed(*evaluation(0, *self.head.forward(leaf, inputs.wanted, objective.needs_entropy)))
            result = self.head.backward(leaf, inputs.wanted, objective.needs_entropy, sensitivity(gradient, 0))
            outputs.copy_(result.outputs)
            torch.autograd.backward(hidden, result.grad_hidden)
        report = ExecutionReport(
            method="packed",
            reason="as configured",
            blocks=len(work.plan.blocks),
            sequence_tokens=batch.sequence_tokens,
            unique_tokens=len(tree),
            recomputed_tokens=0,
            peak_live_tokens=work.plan.tokens,
            seconds=began.elapsed()[0],
        )
        return StepResult(evaluation.loss, evaluation.statistics, work.table.flat(outputs), report)

    @torch.no_grad()
    def logprobs(self, batch: TrainBatch) -> np.ndarray:
        tree, work = self._prepare(batch)
        outputs = torch.zeros(work.table.count, dtype=self._dtype, device=self.model.device)
        for block, inputs in zip(work.plan.blocks, work.inputs, strict=True):
            hidden = self._run(tree, work, block.rows())[inputs.predicting][inputs.predicted_by]
            outputs.copy_(self.head.forward(hidden, inputs.wanted, entropy=False)[0])
        return work.table.flat(outputs)

    def _prepare(self, batch: TrainBatch) -> tuple[PrefixTree, Workload]:
        """One block without limit: everything that is needed, in depth-first order."""
        tree = build_tree(batch)
        plan = plan_blocks(needed_nodes(batch, tree), 0)
        return tree, prepare(batch, tree, plan, self.model.device, self._dtype)

    def _run(self, tree: PrefixTree, work: Workload, rows: np.ndarray) -> Tensor:
        (inputs,) = work.inputs
        first, end = (torch.from_numpy(each[rows]).to(self.model.device) for each in (np.arange(len(tree)), tree.row_end()))
        flex = self.model.device.type == "cuda"
        mask = _block_mask(first, end) if flex else _matrix(first, end)
        with attention(self.model, "flex_attention" if flex else "sdpa"), fast_linears(self.model, self.buffers):
            output = self.model.base_model(
                input_ids=inputs.token_ids[None],
                position_ids=inputs.positions[None],
                attention_mask=mask,
                use_cache=False,
            )
        return output.last_hidden_state[0]

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.model.dtype, torch.float32)


def _matrix(first: Tensor, end: Tensor) -> Tensor:
    """bool [1, 1, rows, rows]: whether the key's row is an ancestor of the query's row, or the row itself."""
    return ((first[None, :] <= first[:, None]) & (first[:, None] < end[None, :]))[None, None]


def _block_mask(first: Tensor, end: Tensor):
    """The same as `_matrix` for FlexAttention."""
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (first[key] <= first[query]) & (first[query] < end[key])

    return create_block_mask(sees, None, None, len(first), len(first), device=str(first.device))
