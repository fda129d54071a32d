"""Strategies of allocation on the same workload with the same seed: static splits, time lending, `auto`, an oracle.

- static: the same split from beginning to end; the best one is known only afterwards.
- lending: the split stays, and the trainers' devices generate while the trainers wait, as systems do that share devices
  in time; the best split for it, too, is known only afterwards.
- auto: the policy, from the two most lopsided splits and an even one. The worst of the three counts.
- oracle: at every stretch of the run the static split that is fastest there, changed for nothing. An upper reference,
  and not quite a bound: buffered groups carry over from one stretch to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_system.allocation.observation import Split
from rl_system.allocation.simulator import SimulationResult, simulate
from rl_system.allocation.workloads import Case

STRETCH = 25
"""Steps of one stretch of the oracle: long enough that buffers and luck do not matter."""
STATIC_SPLITS = 15
"""Static splits simulated at most; larger clusters take evenly spaced ones."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rates are groups/s. Of a stationary workload over the second half of the run (what a strategy reaches), of a
    drifting one over all of it. auto_whole: the same over all of it, relative to the best static split."""

    workload: str
    drifts: bool
    best_static: Split
    static: float
    worst_static: float
    lending: float
    auto: float
    oracle: float
    auto_whole: float
    moves_per_100: int
    ends: tuple[Split, ...]

    @property
    def against_static(self) -> float:
        return self.auto / self.static

    @property
    def against_oracle(self) -> float:
        return self.auto / self.oracle


def compare(case: Case, seed: int = 0) -> Comparison:
    total, profile = case.accelerators, case.profile.scaled(case.accelerators)
    skip = 0 if case.drifts else case.steps // 2
    common = {"steps": case.steps, "seed": seed, "drift": case.drift}
    splits = [Split(n, total - n) for n in static_rollouts(total)]
    static = {split: simulate(profile, "tree", split, **common) for split in splits}
    rates = {split: result.groups_per_s(skip) for split, result in static.items()}
    best = max(rates, key=rates.__getitem__)
    lent = [simulate(profile, "tree", split, lend=True, **common).groups_per_s(skip) for split in splits]
    starts = (splits[0], Split(total // 2, total - total // 2), splits[-1])
    autos = [simulate(profile, "tree", start, mode="auto", **common) for start in starts]
    return Comparison(
        workload=case.name,
        drifts=case.drifts,
        best_static=best,
        static=rates[best],
        worst_static=min(rates.values()),
        lending=max(lent),
        auto=min(result.groups_per_s(skip) for result in autos),
        oracle=oracle_rate(list(static.values()), skip),
        auto_whole=min(result.groups_per_s() for result in autos) / static[best].groups_per_s(),
        moves_per_100=max(result.most_moves(100) for result in autos),
        ends=tuple(result.rows[-1].split for result in autos),
    )


def static_rollouts(total: int) -> list[int]:
    """Rollout accelerators of the static splits that are tried; always 1 and total − 1."""
    count = min(total - 1, STATIC_SPLITS)
    return sorted({round(n) for n in np.linspace(1, total - 1, count)})


def oracle_rate(static: list[SimulationResult], skip: int) -> float:
    """Groups/s of the fastest static split of every stretch of `STRETCH` steps, from step `skip` on."""
    steps = len(static[0].rows)
    edges = [*range(skip, steps, STRETCH), steps]
    ends = np.array([[0.0, *result.seconds] for result in static])
    seconds = (ends[:, edges[1:]] - ends[:, edges[:-1]]).min(axis=0).sum()
    return float((steps - skip) * static[0].groups_per_batch / seconds)
