"""What holds a run down, read from who waits for whom, and what would help when the split would not.

Trainers that never wait are the bottleneck. Trainers that wait while the pool waits for permits too are coupled too
tightly: no split helps as much as a larger staleness bound. Trainers that wait while every slot of the pool is taken
wait for generation; if the engines are idle all the same, the episodes sit in their tools, and more of them at once
would help.
"""

from __future__ import annotations

from rl_system.allocation.decision import Move
from rl_system.allocation.observation import Observation
from rl_system.allocation.pipeline import Limit

NOTICEABLE = 0.1
"""Share of time below which waiting is the granularity of steps and not a symptom."""
UNDERUSED = 0.5
"""Share of engine time idle, or of episode time in tools, above which the pool is too small for its engines."""
WORTH_SHARING = 1.5
"""Compression above which dense training is worth a remark."""


def limiting_factor(observation: Observation) -> Limit:
    rollout, trainer = observation.rollout, observation.trainer
    if trainer.groups_per_s <= 0 or observation.disturbed:
        return Limit.UNKNOWN
    if trainer.waiting < NOTICEABLE:
        return Limit.TRAINING
    if rollout.waiting >= NOTICEABLE:
        return Limit.STALENESS
    if rollout.idle >= UNDERUSED or rollout.tool_share >= UNDERUSED:
        return Limit.CONCURRENCY
    return Limit.GENERATION


def other_lever(limit: Limit, move: Move) -> bool:
    """Whether `move` would only treat a symptom: more engines for a pool that cannot fill those it has.

    The staleness bound and dense training of what a tree would share are named in the reason, but no such case: they are chosen,
    and under any bound and either way to train some split is the best. What they cost is in the predicted rates.
    """
    return limit is Limit.CONCURRENCY and move is Move.TO_ROLLOUT


def describe(observation: Observation, limit: Limit) -> str:
    """The limit with its numbers, and the lever other than the split, where there is one."""
    rollout, trainer = observation.rollout, observation.trainer
    if limit is Limit.UNKNOWN:
        return "this window shows no steady state"
    waits = (
        f"{limit.value} limits (trainers wait {trainer.waiting:.0%} of the time, "
        f"{rollout.waiting:.0%} of the episode slots wait for permits, engines are idle {rollout.idle:.0%})"
    )
    lever = _lever(observation, limit)
    if rollout.failures:
        lever = f"{lever}; {rollout.failures} episodes broke in this window".removeprefix("; ")
    return f"{waits}; {lever}" if lever else waits


def _lever(observation: Observation, limit: Limit) -> str:
    trainer = observation.trainer
    if limit is Limit.STALENESS:
        return f"a larger rollout.max_staleness than {observation.max_staleness} would loosen it"
    if limit is Limit.CONCURRENCY:
        share = observation.rollout.tool_share
        return (
            f"episodes are outside the engines {share:.0%} of their time: a larger environment.concurrency would help"
        )
    if limit is Limit.TRAINING and trainer.method != "tree" and trainer.compression >= WORTH_SHARING:
        return f"training runs {trainer.method} on batches that a tree would compress {trainer.compression:.1f} times"
    return ""
