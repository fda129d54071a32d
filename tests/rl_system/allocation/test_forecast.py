"""Predictions against the simulator, which knows nothing of the formulas behind them."""

import pytest

from rl_system.allocation.forecast import Forecast, computed_tokens_per_group
from rl_system.allocation.observation import Split
from rl_system.allocation.profile import Profile
from rl_system.allocation.simulator import Simulation, simulate
from rl_system.allocation.workloads import base_profile
from rl_system.config.allocation import AllocationConfig
from tests.rl_system.allocation.plant import Plant

UNLIKE = {
    "base": {},
    "much that parts repeat": {"training": {"repeated": 0.2}},
    "dear updates": {"training": {"overhead_s": 30}},
    "slow tools": {"workload": {"tool_s": 120}},
    "on-policy": {"workload": {"max_staleness": 0}},
    "loose": {"workload": {"max_staleness": 6}},
}


def watched(profile: Profile, split: Split, steps: int = 40) -> Forecast:
    """What a run that stays at `split` teaches."""
    config = AllocationConfig(rollout=split.rollout, trainer=split.trainer, mode="advise")
    simulation = Simulation(profile, "tree", config, steps=steps)
    simulation.run()
    return simulation.policy._forecast


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("at", [3, 5])
def test_the_rate_of_other_splits_is_foretold_from_one(name, at):
    """By at most a fifth, and none that is predicted the best is far from being it."""
    profile, here = base_profile(**UNLIKE[name]), Split(at, 8 - at)
    forecast = watched(profile, here)
    predicted, seen = {}, {}
    for rollout in range(2, 7):
        split = Split(rollout, 8 - rollout)
        predicted[split] = forecast.rate(split, here)
        seen[split] = simulate(profile, "tree", split, steps=40).groups_per_s(10)
        assert predicted[split] == pytest.approx(seen[split], rel=0.2)
    assert seen[max(predicted, key=predicted.get)] >= 0.9 * max(seen.values())


@pytest.mark.parametrize("at", [12, 32, 52])
def test_a_cluster_of_64_is_foretold_far_away(at):
    profile, here = base_profile(training={"repeated": 0.2}).scaled(64), Split(at, 64 - at)
    forecast = watched(profile, here, steps=20)
    for rollout in (20, 28, 36, 44):
        split = Split(rollout, 64 - rollout)
        seen = simulate(profile, "tree", split, steps=20).groups_per_s(8)
        assert forecast.rate(split, here) == pytest.approx(seen, rel=0.25)


def test_nothing_is_ready_before_both_sides_were_seen():
    forecast = Forecast()
    assert not forecast.ready
    forecast.learn(Plant().observe(Split(4, 4), 1))
    assert forecast.ready


def test_a_forecast_goes_on_from_its_state():
    first, second = Forecast(), Forecast()
    second.restore(first.state())
    assert not second.ready
    for step in (2, 4):
        first.learn(Plant(1.0, 0.9).observe(Split(4, 4), step))
    second.restore(first.state())
    assert second.state() == first.state()
    assert second.rate(Split(5, 3), Split(4, 4)) == first.rate(Split(5, 3), Split(4, 4))


def test_trainers_compute_unique_tokens_with_the_tree_and_all_of_them_without():
    tree = Plant(compression=8.0).observe(Split(4, 4), 1)
    dense = Plant(compression=8.0, method="dense").observe(Split(4, 4), 1)
    assert computed_tokens_per_group(dense) == 8 * computed_tokens_per_group(tree)
