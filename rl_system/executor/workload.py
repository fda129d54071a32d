"""A batch prepared for depth-first execution: tree, blocks, targets and pairs in the order in which they are run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_system.executor.pairs import PairTable
from rl_system.records import TrainBatch
from rl_system.tree.block_plan import BlockPlan
from rl_system.tree.cost_model import Work
from rl_system.tree.prefix_tree import PrefixTree
from rl_system.tree.pruned import Nodes, pruned_nodes


@dataclass(slots=True)
class BlockInputs:
    """Tensors of one block, int64: token_ids, positions [rows]; predicting: the block's rows that predict a target,
    ascending, and predicting_rows the same on the host. Of its targets, ascending by row: predicted_by, the index into `predicting`, and wanted, the token id.
    first: index of the first target in the table."""

    token_ids: Tensor
    positions: Tensor
    predicting: Tensor
    predicting_rows: np.ndarray
    predicted_by: Tensor
    wanted: Tensor
    first: int


@dataclass(slots=True)
class Workload:
    tree: PrefixTree
    plan: BlockPlan
    inputs: list[BlockInputs]
    table: PairTable
    path_rows: int
    """Longest path above any block."""


def trained_rows(batch: TrainBatch, tree: PrefixTree) -> np.ndarray:
    """int64, ascending: rows that some sequence trains."""
    return np.unique(tree.rows[batch.trained])


def needed_nodes(batch: TrainBatch, tree: PrefixTree) -> Nodes:
    return pruned_nodes(tree, trained_rows(batch, tree))


def prepare(
    batch: TrainBatch, tree: PrefixTree, plan: BlockPlan, device: torch.device, dtype: torch.dtype
) -> Workload:
    """Sort targets by block and predicting row; a fork's targets belong to the row that predicts them all."""
    place = np.full(len(tree) + 1, -1, np.int64)
    block_rows = [block.rows() for block in plan.blocks]
    order = np.concatenate(block_rows or [np.empty(0, np.int64)])
    place[order] = np.arange(len(order))
    first_place = np.cumsum([0, *map(len, block_rows)])

    tokens = np.flatnonzero(batch.trained)
    rows = tree.rows[tokens]
    key = place[tree.parent[rows]] * (len(tree) + 1) + rows
    by_target = np.argsort(key, kind="stable")
    tokens, rows, key = tokens[by_target], rows[by_target], key[by_target]
    new = np.diff(key, prepend=-1) != 0
    targets = np.cumsum(new) - 1
    target_rows = rows[new]
    target_place = place[tree.parent[target_rows]]
    bounds = np.searchsorted(target_place, first_place)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device)

    inputs = []
    for index, each in enumerate(block_rows):
        mine = slice(bounds[index], bounds[index + 1])
        predicting, predicted_by = np.unique(target_place[mine] - first_place[index], return_inverse=True)
        inputs.append(
            BlockInputs(
                token_ids=tensor(tree.token_ids[each]),
                positions=tensor(tree.depth[each]),
                predicting=tensor(predicting),
                predicting_rows=predicting,
                predicted_by=tensor(predicted_by),
                wanted=tensor(tree.token_ids[target_rows[mine]]),
                first=int(bounds[index]),
            )
        )
    table = PairTable(batch, tokens, targets, len(target_rows), device, dtype)
    path_rows = max((block.attach + block.trunk for block in plan.blocks), default=0)
    return Workload(tree, plan, inputs, table, path_rows)


def plan_work(nodes: Nodes, plan: BlockPlan, targets: int) -> Work:
    """What running `plan` amounts to."""
    pairs = nodes.length * nodes.depth + nodes.length * (nodes.length + 1) / 2
    return Work(nodes.tokens, pairs.sum(), len(plan.blocks), plan.recomputed_tokens, targets)
