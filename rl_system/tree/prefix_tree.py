"""The prefix tree of a batch: every distinct prefix of its sequences is one *row*.

Owns the map from (sequence, position) to row. Invariant: rows stand in depth-first preorder, so the descendants of a
row, and those of a node, are one contiguous range of rows; a token that several sequences share is one row.

A *node* is a maximal stretch of rows without a fork inside. Duplicates and sequences that are prefixes of others end
inside nodes and add no rows. Nothing here recurses: forks nest as deep as a trunk is long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_system.records import TrainBatch


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """`U` rows, `N` nodes, `S` sequences.

    token_ids: int32 [U]. depth: int64 [U], the row's position in every sequence through it. parent: int64 [U], the row
    of the previous token, −1 at depth 0. rows: int64 [sequence tokens], the row of each token of the batch, in the
    batch's own order. order: int64 [S], the sequences sorted, which is depth-first order.
    Of nodes, in preorder, int64 [N]: node `n` owns rows `[start[n], stop[n])`, its subtree `[start[n], end[n])`;
    `node_parent[n]` is −1 at the root of a tree (the batch may be a forest).
    """

    token_ids: np.ndarray
    depth: np.ndarray
    parent: np.ndarray
    rows: np.ndarray
    order: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    end: np.ndarray
    node_parent: np.ndarray

    def __len__(self) -> int:
        return len(self.token_ids)

    def row_end(self) -> np.ndarray:
        """int64 [U]: the subtree of row `r`, itself included, is `[r, row_end[r])`."""
        return np.repeat(self.end, self.stop - self.start)


def build_tree(batch: TrainBatch) -> PrefixTree:
    """Sort the sequences, compare neighbours, and lay out what each adds to the one before. O(tokens) beside the sort."""
    order = sorted_sequences(batch)
    shared = neighbour_prefixes(batch, order)
    starts, lengths = batch.offsets[:-1][order], batch.lengths()[order]

    added = lengths - shared
    first_row = np.cumsum(added) - added
    rows = np.empty(batch.sequence_tokens, np.int64)
    for index, (begin, common, length) in enumerate(zip(starts, shared, lengths, strict=True)):
        if common:
            before = starts[index - 1]
            rows[begin : begin + common] = rows[before : before + common]
        rows[begin + common : begin + length] = first_row[index] + np.arange(length - common)

    total = int(added.sum())
    source = np.repeat(starts + shared - first_row, added) + np.arange(total)
    depth = np.repeat(shared - first_row, added) + np.arange(total)
    parent = np.arange(total) - 1
    new = added > 0
    jump, jump_depth, jump_start = first_row[new], shared[new], starts[new]
    parent[jump] = np.where(jump_depth > 0, rows[jump_start + jump_depth - 1], -1)
    return PrefixTree(batch.token_ids[source], depth, parent, rows, order, *_nodes(parent))


def sorted_sequences(batch: TrainBatch) -> np.ndarray:
    """int64 [S]: sequence indices in lexicographic order, equal ones in batch order. Token ids must not be negative."""
    big_endian = batch.token_ids.astype(">u4")
    keys = [big_endian[a:b].tobytes() for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def neighbour_prefixes(batch: TrainBatch, order: np.ndarray) -> np.ndarray:
    """int64 [S]: tokens that each sequence of `order` shares with the one before it; 0 for the first."""
    shared = np.zeros(len(order), np.int64)
    starts, lengths = batch.offsets[:-1], batch.lengths()
    for index in range(1, len(order)):
        a, b = order[index - 1], order[index]
        most = min(lengths[a], lengths[b])
        differ = batch.token_ids[starts[a] : starts[a] + most] != batch.token_ids[starts[b] : starts[b] + most]
        first = int(differ.argmax()) if most else 0
        shared[index] = first if most and differ[first] else most
    return shared


def _nodes(parent: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """start, stop, end and parent of the nodes of rows with these parents.

    A row that does not follow its parent is a second or later child: it opens a node, and so does its eldest sibling,
    the row right after their parent.
    """
    total = len(parent)
    jumps = np.flatnonzero(parent != np.arange(total) - 1)
    forks = parent[jumps]
    start = np.unique(np.concatenate([np.zeros(min(total, 1), np.int64), jumps, forks[forks >= 0] + 1]))
    stop = np.append(start[1:], total)[: len(start)]
    above = parent[start]
    node_parent = np.where(above >= 0, np.searchsorted(start, above, side="right") - 1, -1)
    end = stop.copy()
    for node in range(len(start) - 1, -1, -1):
        up = node_parent[node]
        if up >= 0 and end[node] > end[up]:
            end[up] = end[node]
    return start, stop, end, node_parent
