import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.observation import Observation, RolloutSide, TrainerSide
from rl_system.allocation.pipeline import SMOOTHING, UNEVENNESS, Stalls, end_to_end

RATES = st.floats(0.01, 100)
BATCHES = st.integers(1, 500)
MANY = 10**8
"""Groups a batch of which nothing is uneven any more."""


@given(RATES, RATES)
def test_strictly_on_policy_sides_take_turns(generation, training):
    """Nothing is made during an update: of the batch, all is late."""
    assert end_to_end(generation, 0.0, training, MANY) == pytest.approx(1 / (1 / generation + 1 / training))


@given(RATES, RATES)
def test_an_endless_buffer_leaves_the_slower_side(generation, training):
    assert end_to_end(generation, generation, training, MANY) == pytest.approx(min(generation, training), rel=1e-3)


@given(RATES, RATES, st.floats(0, 1), st.floats(0.01, 1), BATCHES)
def test_a_pipeline_is_no_faster_than_either_side(generation, training, updating, waiting, batch):
    rate = end_to_end(waiting * generation, updating * generation, training, batch)
    assert 0 < rate <= training * (1 + 1e-9)
    assert rate <= max(waiting, updating) * generation * (1 + 1e-9)


@given(RATES, RATES, RATES, BATCHES, st.floats(1.0, 3.0))
def test_a_faster_side_never_slows_the_pipeline_down(waiting, updating, training, batch, factor):
    rate = end_to_end(waiting, updating, training, batch) * (1 - 1e-9)
    assert end_to_end(waiting * factor, updating, training, batch) >= rate
    assert end_to_end(waiting, updating * factor, training, batch) >= rate


@pytest.mark.parametrize("updating", [0.3, 0.8, 1.0, 1.2])
def test_uneven_batches_wait_as_long_as_drawing_them_says(updating):
    """Oracle: the mean of late groups over many drawn updates of one second."""
    made = updating + UNEVENNESS / np.sqrt(16) * np.random.default_rng(0).standard_normal(10**6)
    waited = np.maximum(1 - made, 0).mean() / 0.5
    assert end_to_end(0.5, updating, 1.0, 16) == pytest.approx(1 / (1 + waited), rel=1e-3)


def window(waits: float, empty_in_updates: float, empty: float, bound: int = 2) -> Observation:
    rollout = RolloutSide(2, 1.0, 100.0, waiting=empty, waiting_in_updates=empty_in_updates)
    trainer = TrainerSide(2, 1.0, 100.0, 5.0, waiting=waits)
    return Observation(2, 10.0, rollout, trainer, groups_per_batch=8, max_staleness=bound, concurrency=16)


def test_stalls_are_learnt_from_both_phases():
    """Of a window half of which the trainers waited, with 0.3 of the slots empty then and 0.6 else."""
    stalls = Stalls(2)
    for _ in range(60):
        stalls.update(window(0.5, 0.6, 0.45))
    assert (stalls.waiting, stalls.updating) == pytest.approx((0.3, 0.6), abs=1e-3)


def test_slots_that_are_empty_because_training_is_slow_say_nothing_of_the_coupling():
    stalls = Stalls(2)
    before = stalls.state()
    for _ in range(20):
        stalls.update(window(0.0, 0.7, 0.7))
    assert stalls.state() == before
    stalls.update(window(0.0, 0.1, 0.1))  # but it leaves no more of them empty than that
    assert stalls.updating == pytest.approx(before["updating"] + SMOOTHING * (0.1 - before["updating"]))


def test_a_tighter_bound_is_expected_to_stall_more():
    priors = [Stalls(bound) for bound in range(5)]
    for name in ("waiting", "updating"):
        shares = [getattr(stalls, name) for stalls in priors]
        assert shares == sorted(shares, reverse=True) and 0 <= shares[-1] < 0.02
    assert priors[0].updating == 1.0
