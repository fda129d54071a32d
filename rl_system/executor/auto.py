"""Choosing, batch by batch, the block size and between the tree and plain training.

Every candidate is planned and its time predicted by the cost model, which has learnt from the steps before; the fastest
that stays within the memory budget of `block_tokens + retain_tokens` rows runs, and the report says which and why.
"""

from __future__ import annotations

import numpy as np

from rl_system.algorithms.objective import Objective
from rl_system.executor.dense import DenseExecutor
from rl_system.executor.interface import StepResult
from rl_system.executor.models import Started
from rl_system.executor.tree import TreeExecutor
from rl_system.executor.workload import needed_nodes, plan_work, trained_rows
from rl_system.records import TrainBatch
from rl_system.tree.block_plan import BlockPlan, plan_blocks
from rl_system.tree.cost_model import CostModel
from rl_system.tree.prefix_tree import build_tree
from rl_system.tree.pruned import Nodes

SMALLEST_BLOCK = 512
"""Blocks below this leave the device waiting for the next call; candidates double from here."""


class AutoExecutor:
    def __init__(self, tree: TreeExecutor, dense: DenseExecutor, cost_model: CostModel) -> None:
        self.tree, self.dense, self.cost_model = tree, dense, cost_model
        self.gradients = tree.gradients

    def step(self, batch: TrainBatch, objective: Objective) -> StepResult:
        began = Started(self.tree.model)
        tree = build_tree(batch)
        nodes = needed_nodes(batch, tree)
        plan, tree_seconds = self._best_plan(nodes, len(trained_rows(batch, tree)))
        dense_seconds = self._dense_seconds(batch)
        figures = f"tree {tree_seconds:.3g} s with {len(plan.blocks)} blocks"
        figures += ", dense over the memory budget" if dense_seconds is None else f", dense {dense_seconds:.3g} s"
        if dense_seconds is None or tree_seconds <= dense_seconds:
            return self.tree.step_planned(batch, tree, nodes, plan, objective, f"predicted fastest: {figures}", began)
        result = self.dense.step(batch, objective)
        result.report.reason = f"predicted fastest: {figures}"
        result.report.unique_tokens = len(tree)
        return result

    def logprobs(self, batch: TrainBatch) -> np.ndarray:
        return self.tree.logprobs(batch)

    def _best_plan(self, nodes: Nodes, targets: int) -> tuple[BlockPlan, float]:
        plans = [plan_blocks(nodes, size, retain) for size, retain in self._candidates(nodes)]
        times = [self.cost_model.seconds("tree", plan_work(nodes, plan, targets)) for plan in plans]
        # Of equals the last, which has the larger blocks.
        best = min(range(len(plans)), key=lambda index: (times[index], -index))
        return plans[best], times[best]

    def _candidates(self, nodes: Nodes) -> list[tuple[int, int]]:
        """(block_tokens, retain_tokens): what smaller blocks leave of the budget may hold the graphs of trunks."""
        limit = self.tree.block_tokens or nodes.tokens
        budget = limit + self.tree.retain_tokens
        sizes = []
        size = SMALLEST_BLOCK
        while size < min(limit, nodes.tokens):
            sizes.append((size, budget - size))
            size *= 2
        return [*sizes, (self.tree.block_tokens, self.tree.retain_tokens)]

    def _dense_seconds(self, batch: TrainBatch) -> float | None:
        longest = int(batch.lengths().max(initial=0))
        if self.tree.block_tokens and longest > self.tree.block_tokens + self.tree.retain_tokens:
            return None
        return self.dense.predicted_seconds(batch)
