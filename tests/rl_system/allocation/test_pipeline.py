import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.pipeline import Limit, end_to_end

RATES = st.floats(0.01, 100)


def rate(generation, training, staleness=8, latency=0.0, slowest=0.0, batch=16):
    return end_to_end(
        generation,
        training,
        groups_per_batch=batch,
        max_staleness=staleness,
        latency_s=latency,
        slowest_s=slowest,
    )


@given(RATES, RATES, st.integers(0, 8), st.floats(0, 100))
def test_a_pipeline_is_no_faster_than_either_side(generation, training, staleness, latency):
    assert rate(generation, training, staleness, latency, latency).groups_per_s <= min(generation, training) + 1e-9


@given(RATES, RATES, st.floats(0, 100))
def test_more_staleness_never_slows_down(generation, training, latency):
    rates = [rate(generation, training, s, latency, latency).groups_per_s for s in range(5)]
    assert rates == sorted(rates) or rates == pytest.approx(sorted(rates))


@given(RATES, RATES)
def test_strictly_on_policy_sides_take_turns(generation, training):
    assert rate(generation, training, 0).groups_per_s == pytest.approx(1 / (1 / generation + 1 / training))


def test_each_bound_is_named_when_it_is_the_lowest():
    assert rate(1.0, 2.0) == (1.0, Limit.GENERATION)
    assert rate(2.0, 1.0) == (1.0, Limit.TRAINING)
    assert rate(2.0, 2.0, staleness=1, latency=100.0).limit is Limit.STALENESS
    assert rate(2.0, 2.0, staleness=0).limit is Limit.STALENESS


def test_permits_bound_the_rate_by_littles_law():
    # 2 batches of permits, half a batch fills up: 24.5 groups hold one for 100 s running and 8 s in training.
    assert rate(2.0, 2.0, staleness=1, latency=100.0).groups_per_s == pytest.approx(24.5 / 108)
