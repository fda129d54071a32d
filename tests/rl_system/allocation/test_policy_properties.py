"""What must hold of the policy for any pipeline, in closed loop with a plant in closed form."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rl_system.allocation.decision import Move
from rl_system.allocation.observation import Split
from rl_system.allocation.policy import SplitPolicy
from rl_system.config.allocation import AllocationConfig
from tests.rl_system.allocation.plant import Plant

SPEEDS = st.floats(0.2, 5.0)
EXPONENTS = st.floats(0.5, 1.0)
NOISY = st.builds(Plant, SPEEDS, SPEEDS, EXPONENTS, EXPONENTS, st.floats(0.0, 0.25))
CALM = st.builds(Plant, SPEEDS, SPEEDS, EXPONENTS, EXPONENTS, st.floats(0.0, 0.08))


def run(plant: Plant, start: Split, windows: int, seed: int = 0, **config) -> list[tuple[Split, Move | None]]:
    """The loop of a run: windows of two steps, moves carried out at once, one disturbed window after each."""
    policy = SplitPolicy(AllocationConfig(**({"mode": "auto", "switch_cost_s": 1.0} | config)))
    rng, split, disturbed, history = np.random.default_rng(seed), start, False, []
    for window in range(windows):
        decision = policy.observe(plant.observe(split, 2 * window, rng, disturbed=disturbed))
        history.append((split, decision.move))
        disturbed = decision.move is not None
        if decision.move:
            split = decision.move.applied(split)
    return history


@given(NOISY, st.integers(2, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_neither_side_ever_falls_below_its_bound(plant, rollout, min_rollout, min_trainer, seed):
    start = Split(max(rollout, min_rollout), max(11 - rollout, min_trainer))
    bounds = {"min_rollout": min_rollout, "min_trainer": min_trainer}
    for split, move in run(plant, start, 60, seed, rollout=start.rollout, trainer=start.trainer, **bounds):
        after = move.applied(split) if move else split
        assert after.rollout >= min_rollout and after.trainer >= min_trainer
        assert sum(after) == sum(start)


@given(NOISY, st.integers(1, 9), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_one_accelerator_moves_at_a_time_and_turns_back_not_sooner_than_the_dwell_time(plant, rollout, seed):
    history = run(plant, Split(rollout, 10 - rollout), 60, seed, dwell_steps=6)
    for (before, _), (after, _) in zip(history, history[1:], strict=False):
        assert abs(after.rollout - before.rollout) <= 1
    moves = [(2 * window, move) for window, (_, move) in enumerate(history) if move]
    for (earlier, before), (later, after) in zip(moves, moves[1:], strict=False):
        assert before is after or later - earlier >= 6


@given(CALM, st.integers(1, 9), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_a_stationary_load_ends_near_the_best_split_from_any_start(plant, rollout, seed):
    history = run(plant, Split(rollout, 10 - rollout), 80, seed)
    last = [plant.rate(split) for split, _ in history[-10:]]
    assert np.mean(last) >= 0.8 * plant.best_rate(10)


@given(NOISY, st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_noise_does_not_make_it_oscillate(plant, rollout):
    """200 steps after 100 in which it may find its place: at most 4 moves per 100 steps, as a mean over the noise."""
    moves = [
        sum(move is not None for _, move in run(plant, Split(rollout, 10 - rollout), 150, seed)[50:]) for seed in range(6)
    ]
    assert np.mean(moves) <= 8


@given(NOISY, st.integers(1, 9), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_the_same_observations_give_the_same_decisions(plant, rollout, seed):
    start = Split(rollout, 10 - rollout)
    assert run(plant, start, 30, seed) == run(plant, start, 30, seed)


@pytest.mark.xfail(
    strict=False,
    reason="what generation could do while permits hold it back is estimated, what training could do is exact: near the margin "
    "one side moves and its mirror image does not",
)
@given(st.builds(Plant, SPEEDS, SPEEDS, EXPONENTS, EXPONENTS), st.integers(1, 8))
@settings(max_examples=60, deadline=None, phases=[Phase.generate])
def test_exchanging_the_sides_exchanges_the_moves(plant, rollout):
    mirrored = Plant(plant.training, plant.generation, plant.training_exponent, plant.generation_exponent)
    start = Split(rollout, 9 - rollout)
    for (split, move), (other, opposite) in zip(
        run(plant, start, 20), run(mirrored, Split(start.trainer, start.rollout), 20), strict=True
    ):
        assert split == Split(other.trainer, other.rollout)
        assert move is (opposite.opposite if opposite else None)
