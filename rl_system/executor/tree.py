"""Depth-first execution of a batch's prefix tree: every needed row goes through the model with graph once.

push  the trunk's keys and values are written to the path stack: by a pass without graph, or, if the block is retained,
      by the one pass with graph;
below the blocks that hang from the trunk run, deepest first, and leave gradients of its keys and values on the stack;
pop   a pass with graph over the whole block (unless retained), losses, backward; the trunk takes its gradients.

Invariant: at any time the graphs held cover at most `block_tokens + retain_tokens` rows. No collective is called, so
ranks may run different numbers of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl_system.algorithms.objective import Objective
from rl_system.executor.attention.calls import AttentionPlan, attention_plan, trunk_plan
from rl_system.executor.attention.function import BlockPass
from rl_system.executor.attention.kernels import Kernel
from rl_system.executor.attention.stack import PathStack
from rl_system.executor.gradients import GradientBuffers
from rl_system.executor.head import Head
from rl_system.executor.interface import ExecutionReport, StepResult
from rl_system.executor.layers import tree_layers
from rl_system.executor.models import Started
from rl_system.executor.pairs import Evaluation, Fixed, sensitivity
from rl_system.executor.rowwise import embed
from rl_system.executor.workload import BlockInputs, Workload, needed_nodes, plan_work, prepare
from rl_system.records import TrainBatch
from rl_system.tree.block_plan import Block, BlockPlan, plan_blocks
from rl_system.tree.cost_model import CostModel
from rl_system.tree.prefix_tree import PrefixTree, build_tree
from rl_system.tree.pruned import Nodes


class TreeExecutor:
    """block_tokens: most rows in a block, 0 for no limit. retain_tokens: most rows whose graph waits for blocks below."""

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        kernel: Kernel,
        cost_model: CostModel,
        buffers: GradientBuffers,
        *,
        block_tokens: int = 0,
        retain_tokens: int = 0,
    ) -> None:
        self.model, self.head, self.kernel, self.cost_model = model, head, kernel, cost_model
        self.buffers, self.gradients = buffers, buffers.by_name
        self.block_tokens, self.retain_tokens = block_tokens, retain_tokens
        self.stack = PathStack(model.config.num_hidden_layers)

    def step(self, batch: TrainBatch, objective: Objective) -> StepResult:
        began = Started(self.model)
        tree = build_tree(batch)
        nodes = needed_nodes(batch, tree)
        plan = plan_blocks(nodes, self.block_tokens, self.retain_tokens)
        return self.step_planned(batch, tree, nodes, plan, objective, "as configured", began)

    def step_planned(
        self,
        batch: TrainBatch,
        tree: PrefixTree,
        nodes: Nodes,
        plan: BlockPlan,
        objective: Objective,
        reason: str,
        began: Started,
    ) -> StepResult:
        """A step over a tree and plan made beforehand. began: when that was started."""
        work = prepare(batch, tree, plan, self.model.device, self._dtype)
        evaluation = Evaluation(objective, work.table)
        recomputed = plan.recomputed_tokens
        gradient = evaluation
        if objective.coupled:
            gradient = Fixed(*evaluation(0, *self._forward(work, objective.needs_entropy)))
            recomputed += plan.tokens
        depth_first = _DepthFirst(self, work, objective.needs_entropy, gradient)
        depth_first.run()
        seconds, worked = began.elapsed()
        if not objective.coupled:
            self.cost_model.observe("tree", plan_work(nodes, plan, work.table.count), worked)
        report = ExecutionReport(
            method="tree",
            reason=reason,
            blocks=len(plan.blocks),
            sequence_tokens=batch.sequence_tokens,
            unique_tokens=len(tree),
            recomputed_tokens=recomputed,
            peak_live_tokens=depth_first.peak_live,
            seconds=seconds,
            block_tokens=plan.block_tokens,
        )
        return StepResult(evaluation.loss, evaluation.statistics, work.table.flat(depth_first.outputs), report)

    def logprobs(self, batch: TrainBatch) -> np.ndarray:
        tree = build_tree(batch)
        plan = plan_blocks(needed_nodes(batch, tree), self.block_tokens)
        work = prepare(batch, tree, plan, self.model.device, self._dtype)
        return work.table.flat(self._forward(work, entropy=False)[0])

    @torch.no_grad()
    def _forward(self, work: Workload, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Outputs and entropies of all targets without graph: one pass a block, nothing twice."""
        outputs = torch.zeros(work.table.count, dtype=self._dtype, device=self.model.device)
        entropies = torch.zeros_like(outputs) if entropy else None
        self.stack.reserve(work.path_rows)
        with tree_layers(self.model, self.buffers):
            for block, inputs in zip(work.plan.blocks, work.inputs, strict=True):
                hidden = self.run_block(block, inputs, push=block.trunk > 0)[1]
                result = self.head.forward(hidden[inputs.predicted_by], inputs.wanted, entropy)
                mine = slice(inputs.first, inputs.first + len(inputs.wanted))
                outputs[mine] = result[0]
                if entropies is not None:
                    entropies[mine] = result[1]
        return outputs, entropies

    def push_trunk(self, block: Block, inputs: BlockInputs) -> None:
        """Write the trunk's keys and values to the stack, without graph."""
        rows = slice(0, block.trunk)
        plan = trunk_plan(block, self.kernel.causal_rows)
        block_pass = self._pass(plan, block, inputs, wanted=slice(0), push=True)
        with torch.no_grad():
            self._model(inputs.token_ids[rows], inputs.positions[rows], block_pass)

    def run_block(self, block: Block, inputs: BlockInputs, push: bool) -> tuple[BlockPass, Tensor]:
        """A pass over the whole block: hidden states of its distinct predicting rows [rows, hidden size]."""
        plan = attention_plan(block, self.kernel.causal_rows)
        block_pass = self._pass(plan, block, inputs, wanted=slice(None), push=push)
        return block_pass, self._model(inputs.token_ids, inputs.positions, block_pass)

    def _pass(self, plan: AttentionPlan, block: Block, inputs: BlockInputs, wanted: slice, push: bool) -> BlockPass:
        """wanted: which of the block's predicting rows."""
        last_plan = plan.wanted(inputs.predicting_rows[wanted])
        write_at = block.attach if push else None
        return BlockPass(plan, last_plan, self.stack, self.kernel, inputs.predicting[wanted], write_at, block.trunk)

    def _model(self, token_ids: Tensor, positions: Tensor, block_pass: BlockPass) -> Tensor:
        rows = embed(token_ids, self.model.get_input_embeddings(), self.buffers)
        output = self.model.base_model(
            inputs_embeds=rows[None], position_ids=positions[None], use_cache=False, block_pass=block_pass
        )
        return output.last_hidden_state[0]

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.model.dtype, torch.float32)


class _DepthFirst:
    """One step's walk over the blocks, with an explicit stack of the blocks under way."""

    def __init__(self, executor: TreeExecutor, work: Workload, entropy: bool, gradient: Evaluation | Fixed) -> None:
        self.executor, self.work, self.entropy, self.gradient = executor, work, entropy, gradient
        self.outputs = torch.zeros(work.table.count, dtype=executor._dtype, device=executor.model.device)
        self.live = self.peak_live = 0

    def run(self) -> None:
        self.executor.stack.reserve(self.work.path_rows)
        with tree_layers(self.executor.model, self.executor.buffers):
            waiting = [_Visit(index) for index in reversed(self.work.plan.top())]
            while waiting:
                visit = waiting[-1]
                block = self.work.plan.blocks[visit.index]
                if visit.next_below == 0 and block.trunk:
                    self._push(visit, block)
                if visit.next_below < len(block.below):
                    below = block.below[visit.next_below]
                    self._receive(visit, block, self.work.plan.blocks[below].attach)
                    visit.next_below += 1
                    waiting.append(_Visit(below))
                    continue
                self._pop(visit, block)
                waiting.pop()

    def _push(self, visit: _Visit, block: Block) -> None:
        inputs = self.work.inputs[visit.index]
        visit.received_from = block.attach + block.trunk
        if block.retained:
            self._hold(block.tokens)
            visit.retained = self.executor.run_block(block, inputs, push=True)
        else:
            self.executor.push_trunk(block, inputs)

    def _receive(self, visit: _Visit, block: Block, depth: int) -> None:
        """Take the gradients that blocks below left for the trunk from `depth` on: what runs next may use these rows."""
        depth = max(depth, block.attach)
        if depth >= visit.received_from:
            return
        taken = self.executor.stack.take_gradients(depth, visit.received_from)
        visit.received.append(taken)
        visit.received_from = depth

    def _pop(self, visit: _Visit, block: Block) -> None:
        inputs = self.work.inputs[visit.index]
        if visit.retained is None:
            self._hold(block.tokens)
            block_pass, hidden = self.executor.run_block(block, inputs, push=False)
        else:
            block_pass, hidden = visit.retained
        if block.trunk:
            self._receive(visit, block, block.attach)
            block_pass.received = torch.cat(visit.received[::-1], dim=2)
        mine = slice(inputs.first, inputs.first + len(inputs.wanted))
        leaf = hidden.detach()[inputs.predicted_by]
        result = self.executor.head.backward(
            leaf, inputs.wanted, self.entropy, sensitivity(self.gradient, inputs.first)
        )
        self.outputs[mine] = result.outputs
        torch.autograd.backward(hidden[inputs.predicted_by], result.grad_hidden)
        visit.retained = None
        self.live -= block.tokens

    def _hold(self, rows: int) -> None:
        self.live += rows
        self.peak_live = max(self.peak_live, self.live)


@dataclass(slots=True)
class _Visit:
    """A block under way. received: gradients taken for the trunk so far, deepest first, from row `received_from` on."""

    index: int
    next_below: int = 0
    retained: tuple[BlockPass, Tensor] | None = None
    received: list[Tensor] = None  # type: ignore[assignment]
    received_from: int = 0

    def __post_init__(self) -> None:
        self.received = []
