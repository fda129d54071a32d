"""The end-to-end rate of a split, from the capacities of its two sides.

Three bounds, all operational laws (Lazowska, Zahorjan, Graham, Sevcik, "Quantitative System Performance", 1984, chapters
3 and 5), so they hold whatever the distributions are:

- a pipeline is no faster than either side: `X ≤ G` and `X ≤ T`, with the capacities in groups a second;
- staleness permits are a closed loop. With batch size B and bound η, `(η + 1)·B` groups hold a permit, from their start to
  the publication of the weights that were trained on them: while they run (latency L), while their batch fills up (half
  a batch on average), and while they are trained on (`B/T`). Little's law, N = X·R, over permits gives
  `X ≤ ((η + 1)·B − (B − 1)/2) / (L + B/T)`;
- with η = 0 all groups of a batch start together and the last one is waited for, so the two sides take turns:
  `X = B / (max(L_slowest, B/G) + B/T)`.

The pool's own bound, that C groups at once give at most C/L, is part of G: G is what generation reaches with every slot
of the pool taken.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Limit(enum.StrEnum):
    """What holds the end-to-end rate down."""

    GENERATION = "generation"
    TRAINING = "training"
    STALENESS = "staleness bound"
    CONCURRENCY = "pool concurrency"
    UNKNOWN = "unknown"


class Rate(NamedTuple):
    groups_per_s: float
    limit: Limit


def end_to_end(
    generation: float,
    training: float,
    *,
    groups_per_batch: int,
    max_staleness: int,
    latency_s: float,
    slowest_s: float,
) -> Rate:
    """Predicted rate of a split in groups/s, and which bound is the lowest.

    generation, training: capacities in groups/s, both > 0. latency_s, slowest_s: mean and longest time of a group in
    the pool of this split, with its slots taken.
    """
    update_s = groups_per_batch / training
    if max_staleness == 0:
        together = groups_per_batch / (max(slowest_s, groups_per_batch / generation) + update_s)
        return Rate(together, Limit.STALENESS)
    permits = (max_staleness + 1) * groups_per_batch - (groups_per_batch - 1) / 2
    coupled = permits / (latency_s + update_s)
    bounds = {Limit.GENERATION: generation, Limit.TRAINING: training, Limit.STALENESS: coupled}
    limit = min(bounds, key=bounds.__getitem__)
    return Rate(bounds[limit], limit)
