from dataclasses import replace

from rl_system.allocation.observation import Split
from rl_system.allocation.pipeline import Limit
from rl_system.allocation.symptoms import describe, limiting_factor
from tests.rl_system.allocation.plant import Plant


def seen(trainer_waits=0.0, slots_wait=0.0, idle=0.0, tools=0.0, **plant):
    observation = Plant(**plant).observe(Split(4, 4), 1)
    return replace(
        observation,
        rollout=replace(observation.rollout, waiting=slots_wait, idle=idle, tool_share=tools),
        trainer=replace(observation.trainer, waiting=trainer_waits),
    )


def test_trainers_that_never_wait_are_the_limit():
    assert limiting_factor(seen(0.02, 0.5)) is Limit.TRAINING


def test_trainers_that_wait_for_full_slots_are_limited_by_generation():
    assert limiting_factor(seen(0.5, 0.01)) is Limit.GENERATION


def test_both_sides_waiting_is_the_staleness_bound_and_the_reason_names_the_lever():
    observation = seen(0.4, 0.4)
    assert limiting_factor(observation) is Limit.STALENESS
    assert "a larger rollout.max_staleness than 4" in describe(observation, Limit.STALENESS)


def test_full_slots_and_idle_engines_are_a_pool_too_small_and_the_reason_names_the_lever():
    observation = seen(0.5, 0.0, idle=0.6, tools=0.8)
    assert limiting_factor(observation) is Limit.CONCURRENCY
    assert "outside the engines 80% of their time" in describe(observation, Limit.CONCURRENCY)
    assert "environment.concurrency" in describe(observation, Limit.CONCURRENCY)


def test_dense_training_on_shared_prefixes_is_remarked_upon():
    observation = seen(0.0, 0.5, compression=9.4, method="dense")
    assert "a tree would compress 9.4 times" in describe(observation, Limit.TRAINING)
    assert "tree" not in describe(seen(0.0, 0.5, compression=9.4), Limit.TRAINING)


def test_broken_episodes_are_mentioned():
    observation = seen()
    observation = replace(observation, rollout=replace(observation.rollout, failures=3))
    assert "3 episodes broke" in describe(observation, Limit.TRAINING)
