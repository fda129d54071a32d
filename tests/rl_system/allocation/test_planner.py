from pathlib import Path

import pytest

from rl_system.allocation.observation import Split
from rl_system.allocation.planner import estimate, generation_estimate, plan
from rl_system.allocation.profile import load_profile
from rl_system.allocation.simulator import simulate
from rl_system.allocation.workloads import base_profile
from rl_system.errors import UserError


@pytest.mark.parametrize(
    "name, published, tolerance", [("qwen3-8b-tau2", 2.28, 0.1), ("qwen3-1.7b-tau2", 1.28, 0.1)]
)
def test_the_published_setting_gives_the_published_splits_and_about_the_published_gain(name, published, tolerance):
    plans = {each.method: each for each in plan(load_profile(Path(f"configs/profiles/{name}.yaml")), 8)}
    assert (plans["tree"].rollout, plans["tree"].trainer) == (5, 3)
    assert (plans["dense"].rollout, plans["dense"].trainer) == (2, 6)
    assert plans["tree"].groups_per_s / plans["dense"].groups_per_s == pytest.approx(published, rel=tolerance)
    for each in plans.values():
        assert each.auto_groups_per_s >= 0.95 * each.groups_per_s
        assert each.step_s == pytest.approx(16 / each.groups_per_s)


def test_the_generating_side_solves_its_own_equations():
    """Oracle: fixed-point iteration of X = C/(Z + R), b = X·R/n, R = tokens·(b + h)/speed."""
    one = base_profile({"tool_s": 15})
    time_in_engine = 1.0
    for _ in range(10_000):
        rate = one.workload.concurrency / (15 + time_in_engine)
        target = 3000 * (rate * time_in_engine / 3 + 24) / 2500
        time_in_engine += 0.1 * (target - time_in_engine)
    assert generation_estimate(one, 3) == pytest.approx(rate, rel=1e-6)


def test_the_search_of_a_larger_cluster_finds_what_trying_every_split_finds():
    one = base_profile({"groups_per_batch": 4, "concurrency": 32})
    found = plan(one, 24, steps=40, auto_steps=20)[0]
    scaled = one.scaled(24)
    rates = {n: simulate(scaled, "tree", Split(n, 24 - n), steps=40).groups_per_s(10) for n in range(6, 19)}
    assert found.groups_per_s >= 0.98 * max(rates.values())


def test_the_closed_form_is_near_the_simulator():
    one = base_profile()
    for rollout in (2, 4, 6):
        split = Split(rollout, 8 - rollout)
        simulated = simulate(one, "tree", split, steps=100).groups_per_s(10)
        assert estimate(one, "tree", split)[0] == pytest.approx(simulated, rel=0.2)


def test_one_accelerator_is_refused():
    with pytest.raises(UserError, match="at least one each"):
        plan(base_profile(), 1)
