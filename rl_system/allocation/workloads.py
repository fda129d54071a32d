"""The grid of workloads on which allocation strategies are compared: stationary, noisy and drifting ones.

All are variations of one pipeline whose sides are about even at 5 + 3 of 8 accelerators, so the right split of each is
somewhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl_system.allocation.profile import Generation, Profile, Switch, Training, Workload
from rl_system.allocation.simulator import Drift, Regime

LONGER = {"sampled_tokens": 4.0, "sequence_tokens": 1.5}
"""Answers grow: sampling takes four times as long, training half as much again (most of a sequence is prompt)."""
COSTLIER = {"sequence_tokens": 3.0, "compression": 0.5}
"""More and less similar turns: six times as many unique tokens."""
MUCH_LONGER = {"sampled_tokens": 8.0, "sequence_tokens": 1.5}
MUCH_COSTLIER = {"sequence_tokens": 6.0, "compression": 0.5}
"""Twice either change: noise leaves neighbouring splits so much alike that less drift would leave little to gain."""


@dataclass(frozen=True)
class Case:
    """accelerators: the cluster. steps: length of the comparison. drifts: no one split is right all the time.
    seeds: runs whose mean rate counts, each with random numbers of its own, where one run shows luck more than strategy."""

    name: str
    profile: Profile
    drift: Drift = Drift()
    steps: int = 300
    accelerators: int = 8
    seeds: int = 1

    @property
    def drifts(self) -> bool:
        return len(self.drift.regimes) > 1


def base_profile(
    workload: dict[str, float] | None = None,
    generation: dict[str, float] | None = None,
    training: dict[str, float] | None = None,
) -> Profile:
    return Profile(
        name="grid",
        workload=Workload(**({"tool_s": 15, "compression": 8, "dropped": 0.1} | (workload or {}))),
        generation=Generation(**({"tokens_per_s": 2500, "half_batch": 24} | (generation or {}))),
        training={
            "tree": Training(**({"tokens_per_s": 50_000, "repeated": 0.05, "shares_prefixes": True} | (training or {})))
        },
        switch=Switch(),
    )


def grid() -> list[Case]:
    return stationary() + drifting()


def stationary() -> list[Case]:
    def constant(**factors: float) -> Drift:
        return Drift((Regime(0, **factors),))

    noisy = base_profile(
        {"sampled_spread": 1.0, "tool_spread": 1.0, "broken": 0.02},
        {"stragglers": 0.15, "failures_per_hour": 0.05},
        {"spread": 0.3},
    )
    return [
        Case("even", base_profile()),
        Case("generation-heavy", base_profile(), constant(sampled_tokens=3)),
        Case("training-heavy", base_profile(), constant(training_speed=0.3)),
        Case("slow tools", base_profile({"tool_s": 120})),
        Case("on-policy", base_profile({"max_staleness": 0})),
        Case("long tail", base_profile({"sampled_spread": 1.5, "tool_spread": 1.5})),
        Case("noisy, failing", noisy, seeds=3),
        Case("noisy, training-heavy", noisy, constant(training_speed=0.3), seeds=3),
        Case("64 accelerators", base_profile(), steps=400, accelerators=64),
    ]


def drifting() -> list[Case]:
    def phases(*factors: dict[str, float], every: int) -> Drift:
        return Drift(tuple(Regime(i * every, **each) for i, each in enumerate(factors)))

    def change(before: dict[str, float], after: dict[str, float]) -> Drift:
        """From one to the other over 300 steps, with 250 before and after, in which no split in the middle is right."""
        return Drift((Regime(0, **before), Regime(250, **before), Regime(550, **after)), gradual=True)

    noisy = base_profile({"sampled_spread": 1.0, "tool_spread": 1.0}, {"stragglers": 0.1}, {"spread": 0.3})
    return [
        Case("answers grow", base_profile(), change(COSTLIER, LONGER), 800),
        Case("sharing falls", base_profile(), change(LONGER, COSTLIER), 800),
        Case("one jump", base_profile(), phases(LONGER, COSTLIER, every=250), 500),
        Case("phases", base_profile(), phases(LONGER, COSTLIER, LONGER, COSTLIER, every=200), 800),
        Case("phases, noisy", noisy, phases(MUCH_COSTLIER, MUCH_LONGER, MUCH_COSTLIER, MUCH_LONGER, every=250), 1000, seeds=2),
    ]
