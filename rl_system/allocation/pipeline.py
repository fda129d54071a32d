"""The end-to-end rate of a split, from what its two sides can do and how the staleness bound couples them.

A step takes an update of U seconds and then W seconds in which the trainers wait for the rest of their next batch. Groups are
made all the while, but not always by a full pool: slots stand empty for want of permits, because a version is not trained yet (while
the trainers update) or because the slowest groups of a batch are not done (while they wait). With generation at rates g_u and g_w in
the two phases a batch of B groups gives

    B = g_u·U + g_w·W,   X = B / (U + W),   so with T = B/U:   1/X = 1/T + max(0, 1 − g_u/T) / g_w.

Strictly on-policy g_u is 0 and the sides take turns; with an endless buffer both rates are the capacity G and X = min(G, T).
How many slots stand empty in either phase is measured in every window and changes little from a split to its neighbours, unlike the
rates themselves. `Stalls` holds what is believed of it.
"""

from __future__ import annotations

import enum
import math

from rl_system.allocation.observation import Observation

UNEVENNESS = 0.4
"""Standard deviation of the groups that are made during an update, by the square root of their mean. A batch that comes late costs
time and one that comes early gains none, so uneven sides lose even where they balance on the average; it is what makes the
last accelerator of a side that is almost saturated worth something."""
SMOOTHING = 0.15
"""Weight of the newest window."""
TELLING = 0.2
"""Share of a window that the trainers wait above which all of it shows what couples the sides."""


class Limit(enum.StrEnum):
    """What holds the end-to-end rate down."""

    GENERATION = "generation"
    TRAINING = "training"
    STALENESS = "staleness bound"
    CONCURRENCY = "pool concurrency"
    UNKNOWN = "unknown"


def end_to_end(waiting: float, updating: float, training: float, groups_per_batch: int) -> float:
    """Predicted groups/s. waiting, updating: of generation in either phase of the trainers, > 0 and ≥ 0; training: of trainers
    that never wait, > 0.
    """
    deviation = UNEVENNESS / math.sqrt(groups_per_batch)
    missing = (1 - updating / training) / deviation
    # Mean of max(0, z) of a normal z.
    density = math.exp(-0.5 * missing * missing) / math.sqrt(2 * math.pi)
    late = deviation * (density + missing * 0.5 * math.erfc(-missing / math.sqrt(2)))
    return 1 / (1 / training + late / waiting)


class Stalls:
    """Shares of the episode slots that stand empty while the trainers wait and while they update, because of permits.

    Begins with what simulated pipelines show on the average. A window in which the trainers never waited shows slots that are
    empty since training is slow, which says no more than that the coupling leaves not more of them empty.
    """

    def __init__(self, max_staleness: int) -> None:
        self.waiting = 0.5 * 0.35**max_staleness
        self.updating = max(1 - 0.4 * max_staleness, 0.0)

    def update(self, observation: Observation) -> None:
        # Windows count alike, however long they are: the long ones are those that a slow group held up.
        weight = SMOOTHING * min(observation.trainer.waiting / TELLING, 1.0)
        self.waiting += weight * (_share_while_waiting(observation) - self.waiting)
        in_updates = observation.rollout.waiting_in_updates
        self.updating += (SMOOTHING if in_updates < self.updating else weight) * (in_updates - self.updating)

    def state(self) -> dict[str, float]:
        return {"waiting": self.waiting, "updating": self.updating}

    def restore(self, state: dict[str, float]) -> None:
        self.waiting, self.updating = state["waiting"], state["updating"]


def _share_while_waiting(observation: Observation) -> float:
    waits, rollout = observation.trainer.waiting, observation.rollout
    if waits <= 0:
        return 0.0
    return min(max((rollout.waiting - (1 - waits) * rollout.waiting_in_updates) / waits, 0.0), 1.0)
