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
    drifting one over all of it. auto_whole: the same over all of it, relative to the best static split. moves_per_100,
    turns_per_100: most moves, and most changes of their direction, within any 100 steps of any run."""

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
    turns_per_100: int
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

    def runs(split: Split, **strategy: object) -> list[SimulationResult]:
        seeds = range(seed, seed + case.seeds)
        common = {"steps": case.steps, "drift": case.drift}
        return [simulate(profile, "tree", split, seed=each, **common, **strategy) for each in seeds]

    splits = [Split(n, total - n) for n in static_rollouts(total)]
    static = {split: runs(split) for split in splits}
    rates = {split: mean_rate(results, skip) for split, results in static.items()}
    best = max(rates, key=rates.__getitem__)
    lent = [mean_rate(runs(split, lend=True), skip) for split in splits]
    starts = (splits[0], Split(total // 2, total - total // 2), splits[-1])
    autos = [runs(start, mode="auto") for start in starts]
    return Comparison(
        workload=case.name,
        drifts=case.drifts,
        best_static=best,
        static=rates[best],
        worst_static=min(rates.values()),
        lending=max(lent),
        auto=min(mean_rate(results, skip) for results in autos),
        oracle=oracle_rate(list(static.values()), skip),
        auto_whole=min(mean_rate(results) for results in autos) / mean_rate(static[best]),
        moves_per_100=max(result.most_moves(100) for results in autos for result in results),
        turns_per_100=max(result.most_turns(100) for results in autos for result in results),
        ends=tuple(results[0].rows[-1].split for results in autos),
    )


def mean_rate(results: list[SimulationResult], skip: int = 0) -> float:
    """Groups/s over runs of one length: all their groups by all their seconds, after the first `skip` steps of each."""
    return len(results) / sum(1 / result.groups_per_s(skip) for result in results)


def static_rollouts(total: int) -> list[int]:
    """Rollout accelerators of the static splits that are tried; always 1 and total − 1."""
    count = min(total - 1, STATIC_SPLITS)
    return sorted({round(n) for n in np.linspace(1, total - 1, count)})


def oracle_rate(static: list[list[SimulationResult]], skip: int) -> float:
    """Groups/s of the fastest static split of every stretch of `STRETCH` steps, from step `skip` on. static: of each
    split, the runs with one seed after the other; a split is the fastest by all of them together, not by its luck."""
    steps, runs = len(static[0][0].rows), len(static[0])
    edges = [*range(skip, steps, STRETCH), steps]
    ends = np.array([[0.0, *sum(result.seconds for result in results)] for results in static])
    seconds = (ends[:, edges[1:]] - ends[:, edges[:-1]]).min(axis=0).sum()
    return float((steps - skip) * static[0][0].groups_per_batch * runs / seconds)
