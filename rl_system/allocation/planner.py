"""The best static split of a cluster, and what `auto` reaches from an even one, before anybody owns the cluster.

A closed-form estimate (mean-value equations of the generating side, the cost of an update, and `end_to_end`) says
where to look; the simulator, which knows the unevenness of episodes and the granularity of steps, decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from rl_system.allocation.growth import ClosedLoop, largest_part
from rl_system.allocation.observation import Split
from rl_system.allocation.pipeline import Limit, Stalls, end_to_end
from rl_system.allocation.profile import Profile, Training
from rl_system.allocation.simulator import simulate
from rl_system.errors import UserError

WARM_UP_STEPS = 10
"""Steps until the pipeline has filled up, not counted."""
EXHAUSTIVE = 16
"""Accelerators up to which every split is simulated."""
FIRST_STRIDE, LAST_STRIDE = 16, 256
"""The strides of the search in larger clusters begin and end at these fractions of the accelerators: the closed form is
good to the first, and a difference below the second is one of luck."""
SEARCH_STEPS = 30
"""Simulated policy updates of a split that is only compared with others, in larger clusters: a batch has hundreds of groups
there, and all splits are dealt the same luck."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one training method. step_s: seconds a policy update, end to end. limit: its slower side, by the closed form.

    auto_*: the split at the end of a run that started evenly split, and the rate over its last half.
    """

    method: str
    rollout: int
    trainer: int
    step_s: float
    groups_per_s: float
    limit: Limit
    predicted_groups_per_s: float
    auto_rollout: int
    auto_trainer: int
    auto_groups_per_s: float


def plan(profile: Profile, accelerators: int, *, steps: int = 60, auto_steps: int = 200, seed: int = 0) -> list[Plan]:
    """One plan for each training method of `profile`, scaled to `accelerators`."""
    if accelerators < 2:
        raise UserError(f"--accelerators is {accelerators}; generation and training need at least one each, 2 in all")
    scaled = profile.scaled(accelerators)
    return [_plan(scaled, method, steps, auto_steps, seed) for method in scaled.training]


def _plan(profile: Profile, method: str, steps: int, auto_steps: int, seed: int) -> Plan:
    total = profile.accelerators

    @functools.cache
    def rate(rollout: int, steps: int) -> float:
        split = Split(rollout, total - rollout)
        return simulate(profile, method, split, steps=steps, seed=seed).groups_per_s(WARM_UP_STEPS)

    estimates = {n: estimate(profile, method, Split(n, total - n)) for n in range(1, total)}
    if total <= EXHAUSTIVE:
        best = max(estimates, key=lambda n: (rate(n, steps), n))
    else:
        guess = max(estimates, key=lambda n: (estimates[n][0], n))
        best = _climb(lambda n: rate(n, min(steps, SEARCH_STEPS)), guess, total)
    auto = simulate(profile, method, Split(total - total // 2, total // 2), steps=auto_steps, seed=seed, mode="auto")
    return Plan(
        method=method,
        rollout=best,
        trainer=total - best,
        step_s=profile.workload.groups_per_batch / rate(best, steps),
        groups_per_s=rate(best, steps),
        limit=estimates[best][1],
        predicted_groups_per_s=estimates[best][0],
        auto_rollout=auto.rows[-1].split.rollout,
        auto_trainer=auto.rows[-1].split.trainer,
        auto_groups_per_s=auto.groups_per_s(auto_steps // 2),
    )


def _climb(rate: Callable[[int], float], best: int, total: int) -> int:
    """The best of its neighbours, at strides that are halved, from a first guess."""
    stride, last = max(1, total // FIRST_STRIDE), max(1, total // LAST_STRIDE)
    while stride >= last:
        near = [n for n in (best - stride, best, best + stride) if 1 <= n < total]
        better = max(near, key=lambda n: (rate(n), n))
        if better == best:
            stride //= 2
        best = better
    return best


def estimate(profile: Profile, method: str, split: Split) -> tuple[float, Limit]:
    """Closed form of what the simulator measures: groups/s, and the slower side."""
    workload = profile.workload
    generation = generation_estimate(profile, split.rollout) / workload.group_size * (1 - workload.dropped)
    training = workload.groups_per_batch / update_estimate(profile, profile.training[method], split.trainer)
    limit = Limit.GENERATION if generation < training else Limit.TRAINING
    stalls = Stalls(workload.max_staleness)
    waiting, updating = (generation * (1 - stall) for stall in (stalls.waiting, stalls.updating))
    return end_to_end(waiting, updating, training, workload.groups_per_batch), limit


def generation_estimate(profile: Profile, accelerators: int) -> float:
    """Episodes/s with every slot taken."""
    workload, generation = profile.workload, profile.generation
    again = 1 / (1 - workload.broken)
    speed = generation.tokens_per_s * (1 - generation.stragglers / 2)
    loop = ClosedLoop(workload.tool_s * again, workload.sampled_tokens * again / speed, generation.half_batch)
    return loop.rate(accelerators, workload.concurrency)


def update_estimate(profile: Profile, training: Training, accelerators: int) -> float:
    """Mean seconds of an update."""
    workload = profile.workload
    work = workload.groups_per_batch * workload.group_size * workload.sequence_tokens / training.tokens_per_s
    return training.overhead_s + work * largest_part(accelerators, training.repeated)
