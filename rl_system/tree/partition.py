"""Cutting a batch into parts for several trainers.

Sequences in depth-first order are cut into contiguous parts, because neighbours share the most: a part is a subtree
with the path above it, and a cut makes one path be computed twice. The largest predicted cost is as small as contiguity
allows; within a small slack of that, the cuts are those that compute the least twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_system.records import TrainBatch
from rl_system.tree.cost_model import CostModel
from rl_system.tree.prefix_tree import neighbour_prefixes, sorted_sequences

SLACK = 0.01
"""By how much the largest cost may grow for cuts at better places."""
EVENNESS = 0.01
"""What an uneven cut weighs against computing something twice: of two equal totals the more even one is taken."""
PRECISION = 1e-4
"""Relative precision of the smallest largest cost."""


def partition(batch: TrainBatch, parts: int, cost_model: CostModel) -> list[np.ndarray]:
    """`parts` arrays of sequence indices, int64, in depth-first order. Some are empty where there are too few leaves."""
    order = sorted_sequences(batch)
    shared = neighbour_prefixes(batch, order)
    return [order[a:b] for a, b in _cuts(SequenceCosts(batch, order, shared, cost_model), parts)]


@dataclass(frozen=True, slots=True)
class CutQuality:
    """What became of batches that were cut into the same number of parts, by predicted cost and by tokens, all together.

    kept: unique tokens of the whole by those of its parts. imbalance: cost of the most expensive part by the mean. repeated:
    share f of the whole's cost that every part repeats, with the most expensive of n parts at f + (1 − f)/n; 0 for one part.
    """

    sequence_tokens: int
    unique_tokens: int
    kept: float
    imbalance: float
    repeated: float


def quality(batches: Sequence[TrainBatch], cuts: Sequence[list[np.ndarray]], cost_model: CostModel) -> CutQuality:
    """Of `cuts` as `partition` makes them."""
    parts = len(cuts[0])
    unique = parts_unique = sequence_tokens = 0
    whole = largest = together = 0.0
    for batch, cut in zip(batches, cuts, strict=True):
        order = np.concatenate(cut)
        shared = neighbour_prefixes(batch, order)
        costs = SequenceCosts(batch, order, shared, cost_model)
        ends = np.cumsum([len(part) for part in cut])
        first = np.array([end - len(part) for end, part in zip(ends, cut, strict=True) if len(part)], np.int64)
        each = [costs.of(end - len(part), end) for end, part in zip(ends, cut, strict=True)]
        sequence_tokens += batch.sequence_tokens
        unique += batch.sequence_tokens - int(shared.sum())
        parts_unique += batch.sequence_tokens - int(shared.sum() - shared[first].sum())
        whole, largest, together = whole + costs.of(0, len(order)), largest + max(each), together + sum(each)
    repeated = (largest / whole - 1 / parts) / (1 - 1 / parts) if parts > 1 and whole else 0.0
    return CutQuality(
        sequence_tokens=sequence_tokens,
        unique_tokens=unique,
        kept=unique / max(parts_unique, 1),
        imbalance=largest * parts / together if together else 1.0,
        repeated=min(max(repeated, 0.0), 1.0),
    )


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


def _cuts(costs: SequenceCosts, parts: int) -> list[tuple[int, int]]:
    """Of all cuts whose largest cost is within the slack, those that compute least twice; of equals, the most even.

    best[k][j]: the least that `k` parts of sequences [0, j) can cost. A part [i, j) costs its excess over a share of the
    tree, `alone[i] − added[i]`, and a little of its squared cost, which is what prefers even parts.
    """
    count = len(costs)
    limit = _smallest_limit(costs, parts) * (1 + SLACK)
    excess = costs.alone - costs.added
    evenness = EVENNESS / max(limit, 1e-30)
    best = np.full((parts + 1, count + 1), np.inf)
    before = np.zeros((parts + 1, count + 1), np.int64)
    best[0, 0] = 0.0
    furthest = np.array([costs.furthest(first, limit) for first in range(count)], np.int64)
    # The first sequence from which a part may reach up to `last`; not every later one can.
    reach = np.searchsorted(np.maximum.accumulate(furthest), np.arange(count + 1))
    for part in range(1, parts + 1):
        best[part] = best[part - 1]
        before[part] = np.arange(count + 1)
        for last in range(1, count + 1):
            starts = np.arange(reach[last], last)
            if not len(starts):
                continue
            size = costs.alone[starts] + costs.sums[last] - costs.sums[starts + 1]
            total = best[part - 1, starts] + excess[starts] + evenness * size**2
            total[furthest[starts] < last] = np.inf
            choice = int(total.argmin())
            if total[choice] < best[part, last]:
                best[part, last], before[part, last] = total[choice], starts[choice]
    cuts = []
    last = count
    for part in range(parts, 0, -1):
        first = int(before[part, last])
        cuts.append((first, last))
        last = first
    return cuts[::-1]


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
