"""Cutting a batch into parts for several trainers.

Sequences in depth-first order are cut into contiguous parts, because neighbours share the most: a part is a subtree
with the path above it, and a cut makes one path be computed twice. The largest predicted cost is as small as contiguity
allows; within a small slack of that, cuts fall where the least is shared.
"""

from __future__ import annotations

import numpy as np

from rl_system.records import TrainBatch
from rl_system.tree.cost_model import CostModel
from rl_system.tree.prefix_tree import neighbour_prefixes, sorted_sequences

SLACK = 0.01
"""By how much the largest cost may grow for a cut at a better place."""
PRECISION = 1e-4
"""Relative precision of the smallest largest cost."""


def partition(batch: TrainBatch, parts: int, cost_model: CostModel) -> list[np.ndarray]:
    """`parts` arrays of sequence indices, int64, in depth-first order. Some are empty where there are too few leaves."""
    order = sorted_sequences(batch)
    shared = neighbour_prefixes(batch, order)
    return [order[a:b] for a, b in _cuts(SequenceCosts(batch, order, shared, cost_model), shared, parts)]


class SequenceCosts:
    """Predicted seconds of runs of sequences in depth-first order.

    alone[i]: of sequence `i` without neighbours; added[i]: of what it adds to the one before it.
    """

    def __init__(self, batch: TrainBatch, order: np.ndarray, shared: np.ndarray, cost_model: CostModel) -> None:
        lengths = batch.lengths()[order].astype(np.float64)
        trained = np.concatenate([[0], np.cumsum(batch.trained)])
        begin, end = batch.offsets[:-1][order], batch.offsets[1:][order]
        by_token, by_pair, _, _, by_target = cost_model.coefficients("tree")

        def cost(first: np.ndarray) -> np.ndarray:
            pairs = (lengths * (lengths + 1) - first * (first + 1)) / 2
            targets = trained[end] - trained[begin + first.astype(np.int64)]
            return by_token * (lengths - first) + by_pair * pairs + by_target * targets

        self.alone = cost(np.zeros_like(lengths))
        self.added = cost(shared.astype(np.float64))
        self.sums = np.concatenate([[0.0], np.cumsum(self.added)])

    def __len__(self) -> int:
        return len(self.alone)

    def of(self, first: int, last: int) -> float:
        """Of sequences [first, last)."""
        return 0.0 if first >= last else self.alone[first] + self.sums[last] - self.sums[first + 1]

    def furthest(self, first: int, limit: float) -> int:
        """The largest `last` with a cost of at most `limit`; `first` where not even one sequence fits."""
        if first >= len(self):
            return first
        room = limit - self.alone[first] + self.sums[first + 1]
        return max(first, int(np.searchsorted(self.sums[first + 1 :], room, side="right")) + first)


def _cuts(costs: SequenceCosts, shared: np.ndarray, parts: int) -> list[tuple[int, int]]:
    count = len(costs)
    limit = _smallest_limit(costs, parts) * (1 + SLACK)
    earliest = _earliest_starts(costs, parts, limit)
    cuts = []
    first = 0
    for part in range(parts):
        last = count
        if part < parts - 1 and first < count:
            most = costs.furthest(first, limit)
            least = max(earliest[part + 1], first + 1)
            if most < count:
                # Of the places from which the other parts can still take the rest, the one that shares least, late ones first.
                places = np.arange(most, least - 1, -1)
                last = int(places[np.argmin(shared[places])])
        cuts.append((first, last))
        first = last
    return cuts


def _smallest_limit(costs: SequenceCosts, parts: int) -> float:
    high = costs.of(0, len(costs))
    low = high / parts
    if len(costs):
        low = max(low, float(costs.added.max()))
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        first = 0
        for _ in range(parts):
            first = costs.furthest(first, middle)
        low, high = (low, middle) if first >= len(costs) else (middle, high)
    return high


def _earliest_starts(costs: SequenceCosts, parts: int, limit: float) -> list[int]:
    """earliest[k]: the first sequence from which on parts `k …` can take everything."""
    starts = [len(costs)] * (parts + 1)
    for part in range(parts - 1, -1, -1):
        first = starts[part + 1]
        while first > 0 and costs.of(first - 1, starts[part + 1]) <= limit:
            first -= 1
        starts[part] = first
    return starts

