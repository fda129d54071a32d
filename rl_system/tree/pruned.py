"""What of a prefix tree has to go through the model.

A row is needed when a row below it is trained: it predicts that token, or lends it keys and values. The last token of
a leaf, and whatever follows the last trained token, is never run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_system.tree.prefix_tree import PrefixTree


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of a forest in preorder, int64 [N] each: first tree row, rows, parent (−1 at a root), depth of the first row."""

    start: np.ndarray
    length: np.ndarray
    parent: np.ndarray
    depth: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    @property
    def tokens(self) -> int:
        return int(self.length.sum())


def pruned_nodes(tree: PrefixTree, target_rows: np.ndarray) -> Nodes:
    """The needed rows of each node, nodes without any left out. target_rows: int64, distinct rows that are trained."""
    below = np.zeros(len(tree) + 1, np.int64)
    below[target_rows + 1] = 1
    below = np.cumsum(below)
    needed = below[tree.row_end()] - below[1:] > 0
    # Along a path needed rows come first, so those of a node are a prefix of it, and a kept node's parent is kept whole.
    counts = np.concatenate([[0], np.cumsum(needed)])
    length = counts[tree.stop] - counts[tree.start]
    kept = np.flatnonzero(length)
    new_index = np.full(len(length) + 1, -1, np.int64)
    new_index[kept] = np.arange(len(kept))
    return Nodes(tree.start[kept], length[kept], new_index[tree.node_parent[kept]], tree.depth[tree.start[kept]])
