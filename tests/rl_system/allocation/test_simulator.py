"""The simulator against closed forms and conservation laws, and the policy inside it."""

import time

import numpy as np
import pytest
import simpy

from rl_system.allocation.decision import Move
from rl_system.allocation.observation import Split
from rl_system.allocation.planner import generation_estimate, update_estimate
from rl_system.allocation.profile import Generation, Profile, Switch, Training, Workload
from rl_system.allocation.simulator import Drift, Regime, Simulation, simulate
from rl_system.allocation.simulator.fleet import Engine, Episode
from rl_system.allocation.simulator.pool import _lognormal
from rl_system.allocation.workloads import base_profile
from rl_system.config.allocation import AllocationConfig

EVEN = Split(2, 2)
FREE_TRAINING = Training(tokens_per_s=1e12, overhead_s=0.001, spread=0)


def profile(workload=None, generation=None, training=None) -> Profile:
    return Profile(
        name="test",
        workload=Workload(**({"groups_per_batch": 4, "concurrency": 32, "max_staleness": 4} | (workload or {}))),
        generation=Generation(**({"tokens_per_s": 1000, "half_batch": 8, "sync_s": 0} | (generation or {}))),
        training={"tree": training or FREE_TRAINING},
    )


def run(one: Profile, split: Split = EVEN, steps: int = 40, **changes) -> Simulation:
    config = {"rollout": split.rollout, "trainer": split.trainer, "mode": changes.pop("mode", "off")}
    simulation = Simulation(one, "tree", AllocationConfig(**config), steps=steps, **changes)
    simulation.run()
    return simulation


def test_a_run_repeats_to_the_bit_and_another_seed_does_not():
    noisy = base_profile({"broken": 0.05}, {"stragglers": 0.1, "failures_per_hour": 0.5})
    first, second, other = (run(noisy, steps=30, mode="auto", seed=seed).result for seed in (1, 1, 2))
    assert first.rows == second.rows and first.moves == second.moves
    assert first.rows != other.rows


@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize("rollout", [1, 4])
def test_generation_alone_meets_the_closed_network_it_models(rollout, turns):
    """Even episodes, no training time: the rate is that of C jobs between shared engines and their tools."""
    one = profile({"sampled_spread": 0, "tool_spread": 0.3, "tool_s": 20, "turns": turns, "max_staleness": 8})
    result = run(one, Split(rollout, 1), steps=150).result
    expected = generation_estimate(one, rollout) / one.workload.group_size
    assert result.groups_per_s(30) == pytest.approx(expected, rel=0.06)


def test_training_alone_takes_the_time_of_its_updates():
    training = Training(tokens_per_s=1e5, spread=0)
    one = profile({"sampled_tokens": 1, "tool_s": 0, "sampled_spread": 0}, training=training)
    result = run(one, Split(2, 3)).result
    assert result.groups_per_s(5) == pytest.approx(4 / update_estimate(one, one.training["tree"], 3), rel=1e-3)


def test_strictly_on_policy_sides_take_turns_and_no_token_is_stale():
    one = profile({"max_staleness": 0, "sampled_spread": 0.5}, training=Training(tokens_per_s=2e5))
    simulation = run(one)
    assert all(row.staleness_max == 0 for row in simulation.result.rows)
    assert all(row.waited_s > 0 for row in simulation.result.rows)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_staleness_stays_within_its_bound_whatever_fails(bound):
    one = profile(
        {"max_staleness": bound, "sampled_spread": 1.0, "broken": 0.1, "dropped": 0.3, "turns": 8},
        {"failures_per_hour": 5, "stragglers": 0.2},
        Training(tokens_per_s=5e5, spread=0.5),
    )
    simulation = run(one, Split(3, 3), steps=60, mode="auto")
    assert max(row.staleness_max for row in simulation.result.rows) <= bound
    assert len(simulation.result.rows) == 60


def test_every_group_that_was_started_is_trained_dropped_or_still_there():
    one = profile({"dropped": 0.3, "broken": 0.1, "turns": 8}, {"failures_per_hour": 5}, Training(tokens_per_s=5e5))
    simulation = run(one, Split(3, 3), steps=50, mode="auto")
    ledger = simulation.ledger
    assert ledger.next_group_id == 50 * 4 + sum(ledger.dropped.values()) + len(ledger.alive)
    assert ledger.finished == len(simulation.pool.finished)


def test_sampled_tokens_are_those_of_the_episodes():
    """No spread, nothing dropped: what the engines counted is what the groups needed, moves included."""
    one = profile({"sampled_tokens": 500, "sampled_spread": 0}, training=Training(tokens_per_s=2e6))
    simulation = run(one, Split(3, 5), steps=60, mode="auto")
    needed = 500 * 8 * (simulation.ledger.trained * 4 + simulation.ledger.finished)
    assert needed <= simulation.fleet.sampled_tokens() <= needed + 500 * 8 * simulation.ledger.running


def test_an_accelerator_has_one_owner_at_every_instant():
    simulation = run(base_profile(), Split(7, 1), steps=60, mode="auto")
    assert simulation.result.moves
    for row in simulation.result.rows:
        assert sum(row.split) in (7, 8)  # one at most is on its way and nobody's
    assert sum(simulation.split) == 8 and len(simulation.fleet.engines) == simulation.split.rollout


def test_a_switch_costs_time_and_the_policy_is_told():
    dear = base_profile().model_copy(update={"switch": Switch(rebuild_s=500, release_s=800)})
    simulation = run(dear, Split(7, 1), steps=60, mode="auto")
    cheap = run(base_profile(), Split(7, 1), steps=60, mode="auto")
    assert simulation.result.moves and cheap.result.moves
    assert simulation.result.moves[0] == cheap.result.moves[0]
    assert simulation.policy.switch_cost_s(Move.TO_TRAINER) > 300 > cheap.policy.switch_cost_s(Move.TO_TRAINER)


def test_lent_devices_help_generation_only_while_the_trainers_wait():
    one = base_profile()
    starved, lent = (simulate(one, "tree", Split(1, 7), steps=40, lend=lend) for lend in (False, True))
    assert lent.groups_per_s(5) > 1.15 * starved.groups_per_s(5)
    busy, same = (simulate(one, "tree", Split(7, 1), steps=40, lend=lend) for lend in (False, True))
    assert same.groups_per_s(5) == pytest.approx(busy.groups_per_s(5), rel=0.05)


def test_a_turn_ends_although_the_clock_of_a_long_run_cannot_tell_how_little_is_left_of_it():
    """Weeks into a run a second has fewer digits than a token's time: an engine once woke up forever without getting on."""
    env, ended = simpy.Environment(initial_time=4e9), []
    generation = Generation(tokens_per_s=1e4, half_batch=0)
    engine = Engine(env, 0, generation, 1.0, ended.append, lambda _: None, env.now)
    for tokens in (1.0, 1.0 + 1e-4, 3.0):
        engine.add(Episode(None, tokens, 0.0, 1, 1), tokens)
    for _ in range(50):
        if env.peek() == float("inf"):
            break
        env.step()
    assert len(ended) == 3


def test_a_drift_changes_the_run_where_it_says():
    drift = Drift((Regime(0), Regime(30, training_speed=0.1)))
    rows = simulate(base_profile(), "tree", Split(4, 4), steps=60, drift=drift).rows
    assert rows[40].update_s > 5 * rows[20].update_s


def test_a_gradual_drift_passes_through_the_geometric_mean():
    drift = Drift((Regime(0, tool_s=1.0), Regime(10, tool_s=4.0)), gradual=True)
    assert drift.at(5).tool_s == pytest.approx(2.0)
    assert drift.at(10).tool_s == drift.at(99).tool_s == 4.0


def test_factors_of_episodes_have_mean_one_and_the_spread_that_was_asked_for():
    rng = np.random.default_rng(0)
    factors = np.concatenate([_lognormal(rng, 0.6, 8) for _ in range(20_000)])
    assert factors.mean() == pytest.approx(1.0, abs=0.02)
    assert factors.std() == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize("start", [Split(1, 7), Split(7, 1)])
def test_auto_leaves_a_bad_split_and_reaches_the_best_one(start):
    one, steps = base_profile(), 100
    static = {n: simulate(one, "tree", Split(n, 8 - n), steps=steps).groups_per_s(50) for n in (1, 3, 4, 5, 7)}
    result = simulate(one, "tree", start, steps=steps, mode="auto")
    assert result.groups_per_s(50) >= 0.95 * max(static.values())
    assert result.groups_per_s(50) >= 2 * min(static.values())


@pytest.mark.slow
def test_a_thousand_steps_of_64_accelerators_take_less_than_20_cpu_seconds():
    began = time.process_time()
    result = simulate(base_profile().scaled(64), "tree", Split(32, 32), steps=1000, mode="auto")
    assert len(result.rows) == 1000
    assert time.process_time() - began < 20
