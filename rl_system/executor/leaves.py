"""Leaves only: sequences that are prefixes of others are merged into them, everything else runs alone.

The common middle way between dense and tree: each distinct maximal sequence goes through the model once, with the
targets of all sequences that it contains. Prefixes that maximal sequences share are still computed once for each.
"""

from __future__ import annotations

import numpy as np

from rl_system.executor.dense import DenseExecutor, Piece
from rl_system.executor.pairs import PairTable
from rl_system.records import TrainBatch
from rl_system.tree.prefix_tree import build_tree


class LeavesExecutor(DenseExecutor):
    method = "leaves"
    whole_sequences = False

    def _pieces(self, batch: TrainBatch) -> tuple[PairTable, list[Piece]]:
        tree = build_tree(batch)
        tokens = np.flatnonzero(batch.trained)
        rows = tree.rows[tokens]
        # A leaf's path is its sequence; of the leaves below a row, the first takes the row's target.
        leaves = _leaves(batch, tree.rows, tree.row_end(), tree.order)
        last_rows = tree.rows[batch.offsets[leaves + 1] - 1]
        leaf = np.searchsorted(last_rows, rows)
        key = leaf * (len(tree) + 1) + rows
        by_target = np.argsort(key, kind="stable")
        tokens, rows, leaf, key = tokens[by_target], rows[by_target], leaf[by_target], key[by_target]
        new = np.diff(key, prepend=-1) != 0
        bounds = np.searchsorted(leaf[new], np.arange(len(leaves) + 1))
        positions = tree.depth[rows[new]]
        table = PairTable(batch, tokens, np.cumsum(new) - 1, int(new.sum()), self.model.device, self._dtype)
        pieces = [
            Piece(slice(batch.offsets[each], batch.offsets[each + 1]), positions[first:last], int(first))
            for each, first, last in zip(leaves, bounds[:-1], bounds[1:], strict=True)
            if first < last
        ]
        return table, pieces


def _leaves(batch: TrainBatch, rows: np.ndarray, row_end: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Sequences, one for each distinct one that is no prefix of another, in depth-first order."""
    order = order[batch.lengths()[order] > 0]
    last = rows[batch.offsets[order + 1] - 1]
    ends = row_end[last] == last + 1
    _, first = np.unique(last[ends], return_index=True)
    return order[ends][first]
