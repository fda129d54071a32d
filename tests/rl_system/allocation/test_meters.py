import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.meters import LevelMeter, StateMeter

EVENTS = st.lists(st.tuples(st.floats(0, 10), st.sampled_from(["waiting", "updating", "rebuilding"])), max_size=20)


@given(EVENTS, st.floats(0.1, 10))
def test_the_shares_of_a_window_add_up_to_one(events, tail):
    meter, now = StateMeter("waiting", 5.0), 5.0
    for pause, state in events:
        now += pause
        meter.switch(state, now)
    now += tail
    assert sum(meter.share(state, now) for state in ("waiting", "updating", "rebuilding")) == pytest.approx(1)


def test_a_state_that_goes_on_counts_up_to_now():
    meter = StateMeter("waiting", 0.0)
    meter.switch("updating", 3.0)
    assert meter.share("updating", 4.0) == 0.25
    assert meter.seconds("waiting", 4.0) == 3.0


def test_a_new_window_keeps_the_state_and_forgets_its_past():
    meter = StateMeter("waiting", 0.0)
    meter.switch("updating", 9.0)
    meter.reopen(10.0)
    assert meter.share("updating", 12.0) == 1.0
    assert meter.share("waiting", 12.0) == 0.0


def test_a_window_of_no_length_has_no_shares():
    assert StateMeter("waiting", 1.0).share("waiting", 1.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 50)), min_size=1, max_size=20))
def test_a_mean_level_is_the_area_under_it(changes):
    meter, now, area, level = LevelMeter(7, 0.0), 0.0, 0.0, 7
    for pause, new in changes:
        now += pause
        area += level * pause
        level = new
        meter.set(new, now)
    now += 1.0
    assert meter.mean(now) == pytest.approx((area + level) / now)


@pytest.mark.parametrize("meter", [StateMeter("waiting", 2.0), LevelMeter(1, 2.0)])
def test_time_that_runs_backwards_is_refused(meter):
    with pytest.raises(ValueError, match="backwards"):
        meter.reopen(1.0)
