import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.pipeline import LEAST_FRICTION, MOST_FRICTION, end_to_end, friction_of, prior_friction

RATES = st.floats(0.01, 100)
FRICTIONS = st.floats(LEAST_FRICTION, MOST_FRICTION)


@given(RATES, RATES, FRICTIONS)
def test_a_pipeline_is_no_faster_than_either_side_and_does_not_mind_which_is_which(a, b, friction):
    rate = end_to_end(a, b, friction)
    assert 0 < rate <= min(a, b) * (1 + 1e-12)
    assert rate == end_to_end(b, a, friction)


@given(RATES, RATES, FRICTIONS, st.floats(1.0, 3.0))
def test_a_faster_side_never_slows_the_pipeline_down(a, b, friction, factor):
    assert end_to_end(a * factor, b, friction) >= end_to_end(a, b, friction) * (1 - 1e-12)


@given(RATES, RATES)
def test_strictly_on_policy_sides_take_turns(a, b):
    assert end_to_end(a, b, prior_friction(0)) == pytest.approx(1 / (1 / a + 1 / b))


@given(RATES, RATES)
def test_an_endless_buffer_leaves_the_slower_side(a, b):
    assert end_to_end(a, b, 1e-3) == pytest.approx(min(a, b), rel=1e-2)


@given(st.floats(0.1, 10), st.floats(0.7, 1.4), st.floats(0.05, 2.5))
def test_the_friction_is_read_off_the_rate_that_it_gave(a, ratio, friction):
    assert friction_of(end_to_end(a, a * ratio, friction), a, a * ratio) == pytest.approx(friction, abs=1e-3)


def test_a_rate_that_no_friction_gives_is_read_as_the_nearest():
    assert friction_of(2.0, 1.0, 1.0) == pytest.approx(LEAST_FRICTION, abs=1e-6)
    assert friction_of(0.001, 1.0, 1.0) == pytest.approx(MOST_FRICTION, abs=1e-6)
