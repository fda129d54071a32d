"""What the allocation policy is told: one window of a run, both sides of it, as plain numbers.

Owns the vocabulary of the policy and the check that an observation can be true at all. Shares lie in [0, 1], rates and
times are finite and not negative; anything else is a fault of the measurement and is refused here, before a decision
is built on it.

Words. The *rollout side* generates, the *trainer side* updates the policy. A *group* is a prompt's set of episodes, and
counts once it can be trained on. A *window* is a stretch of wall-clock time between two step boundaries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Split(NamedTuple):
    """Accelerators of either side."""

    rollout: int
    trainer: int

    def __str__(self) -> str:
        return f"{self.rollout} rollout + {self.trainer} training"


@dataclass(frozen=True, slots=True)
class RolloutSide:
    """Generation over one window.

    groups_per_s: finished groups that can be trained on.
    tokens_per_s: sampled tokens, those of dropped groups included.
    idle: share of the engines' time without a request to work on.
    waiting: time-averaged share of the pool's episode slots that stood empty for want of a staleness permit;
    waiting_in_updates: the same over the time in which the trainers did not wait.
    tool_share: share of the running episodes' time that was spent outside the engines (tools, users, scoring).
    group_latency_s: mean time from a group's start to its end; slowest_group_s: the longest in the window.
    failures: episodes that broke and were not scored.
    """

    accelerators: int
    groups_per_s: float
    tokens_per_s: float
    idle: float = 0.0
    waiting: float = 0.0
    waiting_in_updates: float = 0.0
    tool_share: float = 0.0
    group_latency_s: float = 0.0
    slowest_group_s: float = 0.0
    failures: int = 0

    def __post_init__(self) -> None:
        _check("rollout", self, shares=("idle", "waiting", "waiting_in_updates", "tool_share"))


@dataclass(frozen=True, slots=True)
class TrainerSide:
    """Policy updates over one window.

    groups_per_s: groups trained on, over the whole window: the end-to-end rate of the run.
    tokens_per_s: their sequence tokens, over the whole window. seconds_per_update: mean time of one update, from batch
    in hand to weights out, without any waiting. waiting: share of the window without a batch to train on.
    compression: sequence tokens per unique token of the window's prefix trees, whether or not training made use of it.
    repeated: share of a batch's work that the part of every trainer repeats. overhead_s: of an update, seconds that more
    trainers would not shorten. method: what ran, `tree` or `dense`.
    """

    accelerators: int
    groups_per_s: float
    tokens_per_s: float
    seconds_per_update: float
    waiting: float = 0.0
    compression: float = 1.0
    repeated: float = 0.0
    overhead_s: float = 0.0
    method: str = "tree"

    def __post_init__(self) -> None:
        _check("trainer", self, shares=("waiting", "repeated"))
        if self.compression and self.compression < 1:
            raise ValueError(f"observation: trainer.compression is {self.compression}; a tree never has more tokens")


@dataclass(frozen=True, slots=True)
class SwitchCost:
    """What one past move cost: seconds of the whole run's production that were lost to it."""

    to_rollout: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Observation:
    """One window of a run.

    step: policy updates made so far. seconds: length of the window. queue: finished groups that wait for a batch, at
    its end. staleness: mean staleness of what was trained on. concurrency: episodes that the pool can run at once.
    disturbed: the window contains a switch or a recovery, so its rates belong to no split. switches: the moves that
    ended since the previous observation. steps_left: updates that the run will still make; None: it has no end.
    """

    step: int
    seconds: float
    rollout: RolloutSide
    trainer: TrainerSide
    groups_per_batch: int
    max_staleness: int
    concurrency: float
    queue: float = 0.0
    staleness: float = 0.0
    disturbed: bool = False
    switches: tuple[SwitchCost, ...] = ()
    steps_left: int | None = None

    def __post_init__(self) -> None:
        if self.groups_per_batch < 1 or self.max_staleness < 0 or self.step < 0:
            raise ValueError(f"observation: impossible bounds in {self}")
        for name in ("seconds", "concurrency", "queue", "staleness"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"observation: {name} is {value}; a number that is not negative was expected")

    @property
    def split(self) -> Split:
        return Split(self.rollout.accelerators, self.trainer.accelerators)


def _check(side: str, values: RolloutSide | TrainerSide, shares: tuple[str, ...]) -> None:
    for name in values.__slots__:
        value = getattr(values, name)
        if isinstance(value, str):
            continue
        if not math.isfinite(value) or value < 0 or (name in shares and value > 1):
            kind = "a share between 0 and 1" if name in shares else "a number that is not negative"
            raise ValueError(f"observation: {side}.{name} is {value}; {kind} was expected")
    if values.accelerators < 1:
        raise ValueError(f"observation: {side}.accelerators is {values.accelerators}; each side has at least one")
