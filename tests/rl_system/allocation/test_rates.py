import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.rates import (
    EXPONENT_DEVIATION,
    EXPONENT_WALK,
    LEVEL_WALK,
    MEASUREMENT_DEVIATION,
    RateFit,
)


def test_one_number_of_accelerators_leaves_the_exponent_at_its_prior():
    fit = RateFit(exponent=0.8)
    for _ in range(30):
        fit.update(4, 100.0)
    assert fit.exponent == pytest.approx(0.8)
    assert fit.rate(4, 4) == pytest.approx(100.0)
    assert fit.rate(8, 4) == pytest.approx(100.0 * 2**0.8)


def test_the_exponent_is_learnt_from_a_jump():
    fit = RateFit()
    for n in (4, 4, 4, 8, 8, 8, 4, 4, 4, 8, 8, 8) * 4:
        fit.update(n, 10.0 * n**0.5)
    assert fit.exponent == pytest.approx(0.5, abs=0.05)
    assert fit.rate(16, 8) == pytest.approx(10.0 * 16**0.5, rel=0.05)


def test_a_workload_that_drifts_is_not_mistaken_for_bad_scaling():
    fit, level = RateFit(), 1.0
    for window in range(60):
        n = 4 + window // 15  # one accelerator more now and then, while everything becomes slower all the time
        level *= 0.97
        fit.update(n, level * n)
    assert fit.exponent == pytest.approx(1.0, abs=0.15)
    assert fit.rate(7, 7) == pytest.approx(level * 7, rel=0.1)


def test_a_failed_window_moves_the_level_little_and_a_lasting_change_moves_it_soon():
    fit = RateFit()
    for _ in range(10):
        fit.update(4, 100.0)
    fit.update(4, 20.0)
    assert fit.rate(4, 4) > 70
    for _ in range(8):
        fit.update(4, 20.0)
    assert fit.rate(4, 4) == pytest.approx(20.0, rel=0.15)


def test_a_window_of_large_deviation_teaches_less():
    sharp, vague = RateFit(), RateFit()
    for fit, deviation in ((sharp, 0.0), (vague, 0.5)):
        fit.update(4, 100.0)
        fit.update(4, 110.0, deviation)
    assert 100 < vague.rate(4, 4) < sharp.rate(4, 4) < 110


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0.9, 1.1)), min_size=2, max_size=12))
def test_the_recursive_fit_equals_generalised_least_squares_over_all_windows(windows):
    """Oracle: the random walks as one joint Gaussian over all measurements, solved at once in float64."""
    # Small noise only: outliers are weighted down recursively, which the joint solution does not know.
    numbers = np.log([n for n, _ in windows])
    rates = np.array([5.0 * n**0.9 * noise**0.3 for n, noise in windows])
    fit = RateFit(exponent=0.9)
    for (n, _), rate in zip(windows, rates, strict=True):
        fit.update(n, rate)
    k, wide = len(windows), 1e6
    steps = np.minimum.outer(np.arange(k), np.arange(k))
    covariance = (
        MEASUREMENT_DEVIATION**2 * np.eye(k)
        + wide
        + LEVEL_WALK**2 * steps
        + np.outer(numbers, numbers) * (EXPONENT_DEVIATION**2 + EXPONENT_WALK**2 * steps)
    )
    residual = np.log(rates) - 0.9 * numbers
    last = k - 1
    cross_level = wide + LEVEL_WALK**2 * steps[last]
    cross_exponent = numbers * (EXPONENT_DEVIATION**2 + EXPONENT_WALK**2 * steps[last])
    solved = np.linalg.solve(covariance, residual)
    level, exponent = cross_level @ solved, 0.9 + cross_exponent @ solved
    if 0 < exponent < 1.1:
        assert fit.exponent == pytest.approx(exponent, abs=1e-5)
        assert math.log(fit.rate(3, 3)) == pytest.approx(level + exponent * math.log(3), abs=1e-5)


def test_the_prediction_is_surer_where_it_was_measured():
    fit = RateFit()
    for _ in range(5):
        fit.update(4, 100.0)
    assert fit.deviation(4) < fit.deviation(8) < fit.deviation(64)


def test_a_fit_goes_on_from_its_state():
    fit, other = RateFit(), RateFit()
    for n in (4, 5, 6):
        fit.update(n, 10.0 * n)
    other.restore(fit.state())
    fit.update(7, 60.0)
    other.update(7, 60.0)
    assert other.rate(9, 7) == fit.rate(9, 7)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_has_no_logarithm_is_refused(rate):
    with pytest.raises(ValueError, match="rate fit"):
        RateFit().update(4, rate)
