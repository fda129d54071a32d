"""Cutting a prefix tree into blocks that are run depth-first.

A *block* is at most `block_tokens` rows that hang from one path: sibling subtrees, or a *trunk* together with the
subtrees that hang from it. Other blocks may hang from a block's trunk and nowhere else. Invariant: every needed row is
in exactly one block; a block's segments stand in depth-first preorder with the trunk first, so descendants are
contiguous; the blocks stand in an order in which each comes after the block it hangs from.

Rows of a trunk that blocks hang from are run twice unless their graph is retained. Filling blocks from the leaves
upwards keeps those rows few: whatever is cut stays as far up, and as whole, as the limit allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rl_system.tree.pruned import Nodes


@dataclass(slots=True)
class Block:
    """start, length, parent: int64 [segments]: first tree row, rows, and index of the segment above (−1: the path).

    attach: rows of the path above the block. trunk: leading rows of the block that blocks below hang from, 0 if none.
    above: index of the block this one hangs from, −1 at the top. retained: its graph is kept while the blocks below run.
    """

    start: np.ndarray
    length: np.ndarray
    parent: np.ndarray
    attach: int
    trunk: int
    above: int
    retained: bool = False
    below: list[int] = field(default_factory=list)
    """Blocks that hang from this one, deepest first: a block may overwrite the path's rows from its own depth on."""

    @property
    def tokens(self) -> int:
        return int(self.length.sum())

    def rows(self) -> np.ndarray:
        """int64 [tokens]: tree rows in the block's order."""
        first = np.cumsum(self.length) - self.length
        return np.repeat(self.start - first, self.length) + np.arange(self.tokens)


@dataclass(slots=True)
class BlockPlan:
    blocks: list[Block]
    block_tokens: int
    retain_tokens: int

    @property
    def tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)

    @property
    def recomputed_tokens(self) -> int:
        """Rows that go through the model a second time, the first without graph."""
        return sum(block.trunk for block in self.blocks if not block.retained)

    def top(self) -> list[int]:
        return [index for index, block in enumerate(self.blocks) if block.above < 0]


def plan_blocks(nodes: Nodes, block_tokens: int, retain_tokens: int = 0) -> BlockPlan:
    """Blocks of at most `block_tokens` rows (0: no limit); graphs of at most `retain_tokens` rows are kept on any path."""
    limit = block_tokens or max(nodes.tokens, 1)
    blocks = _Layout(*_Cutter(nodes, limit).cut()).blocks()
    _retain(blocks, retain_tokens)
    return BlockPlan(blocks, block_tokens, retain_tokens)


class _Cutter:
    """Decides, from the leaves upwards, which nodes stay together.

    Every node carries its *remainder*: itself and the nodes below that are not yet in a block. A remainder is open when
    blocks hang from it; a block may hold one open remainder only, whose path becomes the trunk.
    """

    def __init__(self, nodes: Nodes, limit: int) -> None:
        self.limit = limit
        self.start = nodes.start.tolist()
        self.length = nodes.length.tolist()
        self.depth = nodes.depth.tolist()
        self.parent = nodes.parent.tolist()
        self.kept: list[list[int]] = [[] for _ in self.start]
        self.hung: list[list[list[int]]] = [[] for _ in self.start]
        self.weight = [0] * len(self.start)
        self.open = [False] * len(self.start)

    def cut(self) -> tuple[_Cutter, list[list[int]]]:
        """The decisions, and the blocks at the top, each as the list of its root nodes."""
        children: list[list[int]] = [[] for _ in self.start]
        roots = []
        for node in range(len(self.parent) - 1, -1, -1):
            self._close(node, children[node])
            up = self.parent[node]
            (children[up] if up >= 0 else roots).append(node)
        return self, self._pack(roots)

    def _close(self, node: int, children: list[int]) -> None:
        bins = self._pack(children)
        kept: list[int] = []
        if bins:
            # The lightest bin goes on upwards when the node fits with it (or when it is the only one: then the
            # node is split, and only its upper part is run twice); the others become blocks here.
            bins.sort(key=self._total)
            if len(bins) == 1 or self._total(bins[0]) + self.length[node] <= self.limit:
                kept = bins.pop(0)
        self.hung[node] = bins
        while self.length[node] + self._total(kept) > self.limit:
            kept = self._split(node, kept)
        self.kept[node] = kept
        self.weight[node] = self.length[node] + self._total(kept)
        self.open[node] = bool(self.hung[node]) or any(self.open[child] for child in kept)

    def _split(self, node: int, kept: list[int]) -> list[int]:
        """Make one block of `kept` and as much of the node's lower end as fits with it, and hang it from the rest."""
        room = self.limit - self._total(kept)
        if room == 0:
            self.hung[node].append(kept)
            return []
        lower = len(self.start)
        cut = self.length[node] - room
        self.start.append(self.start[node] + cut)
        self.depth.append(self.depth[node] + cut)
        self.length.append(room)
        self.kept.append(kept)
        self.hung.append(self.hung[node])
        self.weight.append(self.limit)
        self.open.append(bool(self.hung[node]) or any(self.open[child] for child in kept))
        self.length[node] = cut
        self.hung[node] = [[lower]]
        return []

    def _pack(self, remainders: list[int]) -> list[list[int]]:
        """First fit, heaviest first, into bins of at most `limit` rows with one open remainder each."""
        bins: list[list[int]] = []
        room: list[int] = []
        has_open: list[bool] = []
        for node in sorted(remainders, key=self.weight.__getitem__, reverse=True):
            for index in range(len(bins)):
                if self.weight[node] <= room[index] and not (self.open[node] and has_open[index]):
                    break
            else:
                index = len(bins)
                bins.append([])
                room.append(self.limit)
                has_open.append(False)
            bins[index].append(node)
            room[index] -= self.weight[node]
            has_open[index] |= self.open[node]
        return bins

    def _total(self, group: list[int]) -> int:
        return sum(self.weight[node] for node in group)


class _Layout:
    """Turns the cutter's decisions into blocks: trunk first, then the heavier subtree first, depth-first."""

    def __init__(self, cutter: _Cutter, top: list[list[int]]) -> None:
        self.cutter = cutter
        self.top = top

    def blocks(self) -> list[Block]:
        blocks: list[Block] = []
        waiting = [(group, -1) for group in reversed(self.top)]
        while waiting:
            group, above = waiting.pop()
            block, hung = self._block(group, above)
            index = len(blocks)
            if above >= 0:
                blocks[above].below.append(index)
            blocks.append(block)
            # Popped from the end: the deepest of `hung` runs first.
            waiting += [(each, index) for each in hung]
        return blocks

    def _block(self, group: list[int], above: int) -> tuple[Block, list[list[int]]]:
        """The block of the remainders in `group`, and the groups that hang from it, shallowest first."""
        cutter = self.cutter
        nodes: list[int] = []
        parents: list[int] = []
        hung: list[list[int]] = []
        trunk = rows = 0
        # Heaviest, or open, on top of the stack.
        stack = [(node, -1) for node in sorted(group, key=self._rank)]
        while stack:
            node, parent = stack.pop()
            index = len(nodes)
            nodes.append(node)
            parents.append(parent)
            rows += cutter.length[node]
            if cutter.hung[node]:
                trunk = rows
                hung += cutter.hung[node]
            stack += [(child, index) for child in sorted(cutter.kept[node], key=self._rank)]
        block = Block(
            np.array([cutter.start[node] for node in nodes], np.int64),
            np.array([cutter.length[node] for node in nodes], np.int64),
            np.array(parents, np.int64),
            cutter.depth[group[0]],
            trunk,
            above,
        )
        return block, hung

    def _rank(self, node: int) -> tuple[bool, int]:
        return self.cutter.open[node], self.cutter.weight[node]


def _retain(blocks: list[Block], retain_tokens: int) -> None:
    """From the top down, keep the graph of each block with a trunk while all kept on its path fit."""
    held = [0] * len(blocks)
    for index, block in enumerate(blocks):
        before = held[block.above] if block.above >= 0 else 0
        block.retained = block.trunk > 0 and before + block.tokens <= retain_tokens
        held[index] = before + (block.tokens if block.retained else 0)
