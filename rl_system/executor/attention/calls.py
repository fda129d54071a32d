"""Which rows attend to which keys, as plain attention calls.

A block's rows stand in depth-first preorder, so every set of rows that sees the same keys is one contiguous range, and
the attention of a row is a sum of plain calls that are merged by their log-sum-exp. No call needs a mask.

Invariant: within one level of an `AttentionPlan` the query ranges are disjoint and ascending; over all calls each row
meets each of its ancestors in the block, itself, and each row of the path above it exactly once.

Segments are joined to *chains* (a segment and its first child, its first child, …): a chain is causal in itself, and
whatever hangs from it meets it in one call. A row is therefore merged at most log₂(segments) + 2 times however deep
the forks nest, since the planner puts the heavier child first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rl_system.tree.block_plan import Block


@dataclass(frozen=True, slots=True)
class Call:
    """Queries `[q0, q1)` of the block against keys `[k0, k1)`, of the path above if `path`, else of the block."""

    q0: int
    q1: int
    k0: int
    k1: int
    causal: bool = False
    path: bool = False


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Calls by level. Level 0 is causal and covers every row of the block; the others add to it.

    Where only some rows are wanted, calls that none of these needs are left out, and level 0 covers them alone.
    """

    tokens: int
    levels: tuple[tuple[Call, ...], ...]

    def wanted(self, rows: np.ndarray) -> AttentionPlan:
        """What the results of `rows` need, int64 and ascending. Results of other rows are undefined."""
        levels = (tuple(_wanted(call, rows) for call in calls) for calls in self.levels)
        kept = (tuple(call for call in calls if call is not None) for calls in levels)
        return AttentionPlan(self.tokens, tuple(calls for calls in kept if calls))

    @property
    def complete(self) -> bool:
        """Whether level 0 covers every row."""
        return bool(self.levels) and sum(call.q1 - call.q0 for call in self.levels[0]) == self.tokens


def attention_plan(block: Block, causal_rows: int | None = None) -> AttentionPlan:
    """Calls of a whole block. causal_rows: most rows of a causal call; None for no limit."""
    return _plan(block.length, block.parent, block.attach, causal_rows)


def trunk_plan(block: Block, causal_rows: int | None = None) -> AttentionPlan:
    """Calls of the trunk alone, the block's leading rows."""
    return _plan(np.array([block.trunk]), np.array([-1]), block.attach, causal_rows)


def _plan(length: np.ndarray, parent: np.ndarray, attach: int, causal_rows: int | None) -> AttentionPlan:
    stop = np.cumsum(length)
    start = stop - length
    end = stop.copy()
    for index in range(len(parent) - 1, -1, -1):
        if parent[index] >= 0:
            end[parent[index]] = max(end[parent[index]], end[index])

    chain_start = start.copy()
    level = np.zeros(len(parent), np.int64)
    hung: dict[int, Call] = {}
    causal: list[Call] = []
    for index, up in enumerate(parent.tolist()):
        if up >= 0 and up == index - 1:
            chain_start[index] = chain_start[up]
            level[index] = level[up]
            causal[-1] = Call(causal[-1].q0, int(stop[index]), causal[-1].q0, int(stop[index]), causal=True)
            continue
        causal.append(Call(int(start[index]), int(stop[index]), int(start[index]), int(stop[index]), causal=True))
        if up >= 0:
            level[index] = level[up] + 1
            first = hung[up].q0 if up in hung else int(start[index])
            hung[up] = Call(first, int(end[index]), int(chain_start[up]), int(stop[up]))

    tokens = int(stop[-1])
    causal, strips = _cut(causal, causal_rows or tokens)
    levels: list[list[Call]] = [causal, strips] if strips else [causal]
    if attach:
        levels.append([Call(0, tokens, 0, attach, path=True)])
    by_level: dict[int, list[Call]] = {}
    for up, call in hung.items():
        by_level.setdefault(int(level[up]), []).append(call)
    levels += [sorted(by_level[each], key=lambda call: call.q0) for each in sorted(by_level)]
    return AttentionPlan(tokens, tuple(tuple(calls) for calls in levels))


def _cut(causal: list[Call], rows: int) -> tuple[list[Call], list[Call]]:
    """Causal calls as causal calls of at most `rows` rows, and plain ones of those rows with the chain's keys before."""
    starts = [(chain, at) for chain in causal for at in range(chain.q0, chain.q1, rows)]
    ends = [min(at + rows, chain.q1) for chain, at in starts]
    diagonal = [Call(at, end, at, end, causal=True) for (_, at), end in zip(starts, ends, strict=True)]
    strips = [Call(at, end, chain.q0, at) for (chain, at), end in zip(starts, ends, strict=True) if at > chain.q0]
    return diagonal, strips


def _wanted(call: Call, rows: np.ndarray) -> Call | None:
    """The call cut down to the stretch of queries that holds its `rows`, or None where it has none of them."""
    first, last = np.searchsorted(rows, (call.q0, call.q1))
    if first == last:
        return None
    end = int(rows[last - 1]) + 1
    # The queries of a causal call must begin where its keys begin.
    return replace(call, q1=end, k1=end) if call.causal else replace(call, q0=int(rows[first]), q1=end)
