import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.growth import HALF_BATCH, ClosedLoop, overhead_of, training_speedup

SHARES = st.floats(0, 1)


@given(st.integers(1, 1000), SHARES, st.floats(0, 5))
def test_training_grows_with_its_trainers_and_no_faster_than_their_number(trainers, repeated, overhead):
    speedup = training_speedup(trainers, repeated, overhead)
    assert training_speedup(1, repeated, overhead) == 1
    assert 1 <= speedup <= trainers * (1 + 1e-12)
    assert training_speedup(trainers + 1, repeated, overhead) >= speedup


def test_work_that_nothing_repeats_is_divided_and_what_all_repeat_is_the_limit():
    assert training_speedup(8, 0.0, 0.0) == pytest.approx(8)
    assert training_speedup(10**6, 0.2, 0.0) == pytest.approx(5, rel=1e-4)
    assert training_speedup(10**6, 0.0, 0.25) == pytest.approx(5, rel=1e-4)


@given(st.integers(1, 64), st.integers(1, 64), SHARES, st.floats(0.1, 100), st.floats(0, 50))
def test_the_overhead_of_one_number_of_trainers_tells_the_update_of_another(at, trainers, repeated, work_s, overhead_s):
    def update_s(number: int) -> float:
        return overhead_s + work_s * (repeated + (1 - repeated) / number)

    overhead = overhead_of(update_s(at), overhead_s, at, repeated)
    ratio = training_speedup(trainers, repeated, overhead) / training_speedup(at, repeated, overhead)
    assert update_s(at) / update_s(trainers) == pytest.approx(ratio, rel=1e-6)


@given(st.floats(0, 100), st.floats(1e-4, 1), st.integers(1, 100), st.floats(1, 2000))
def test_the_closed_loop_solves_its_own_equations(tools_s, engine_s, accelerators, slots):
    rate = ClosedLoop(tools_s, engine_s).rate(accelerators, slots)
    in_engines_s = slots / rate - tools_s
    sequences = rate * in_engines_s / accelerators
    assert in_engines_s == pytest.approx(engine_s * (sequences + HALF_BATCH), rel=1e-6, abs=1e-9 * slots / rate)


def test_engines_with_more_episodes_than_they_need_multiply_and_empty_ones_add_nothing():
    loop = ClosedLoop(tools_s=0.1, engine_s=0.001)
    assert loop.rate(4, 10**6) / loop.rate(2, 10**6) == pytest.approx(2, rel=1e-3)
    waiting = ClosedLoop(tools_s=10.0, engine_s=0.001)
    assert waiting.rate(64, 16) / waiting.rate(32, 16) == pytest.approx(1, rel=1e-2)
    assert waiting.rate(64, 16) == pytest.approx(16 / (10 + 0.001 * HALF_BATCH), rel=1e-3)


@given(st.floats(0, 100), st.floats(1e-4, 1), st.integers(1, 100), st.floats(1, 2000))
def test_one_more_engine_or_episode_never_makes_the_loop_slower(tools_s, engine_s, accelerators, slots):
    loop = ClosedLoop(tools_s, engine_s)
    rate = loop.rate(accelerators, slots) * (1 - 1e-9)
    assert loop.rate(accelerators + 1, slots) >= rate
    assert loop.rate(accelerators, slots * 1.1) >= rate
