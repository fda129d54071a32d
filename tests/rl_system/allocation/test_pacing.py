import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.pacing import PacedDevices, pace_at
from rl_system.config.allocation import AllocationConfig, Pace


def test_each_pace_holds_until_the_next():
    paces = [Pace(step=step, sampled_tokens_per_s=step + 1, trained_tokens_per_s=1) for step in (0, 10)]
    assert [pace_at(paces, step).step for step in (0, 9, 10, 99)] == [0, 0, 10, 10]
    assert pace_at([], 5) is None


def test_paces_out_of_order_are_refused():
    paces = [{"step": step, "sampled_tokens_per_s": 1, "trained_tokens_per_s": 1} for step in (0, 5, 5)]
    with pytest.raises(ValueError, match=r"pace begins at steps \[0, 5, 5\]"):
        AllocationConfig(pace=paces)


def test_without_a_pace_nothing_waits():
    assert PacedDevices().wait_s(0, 1000, 0.0, 0.0) == 0.0


def test_what_took_longer_than_the_device_would_is_not_held_back():
    devices = PacedDevices()
    devices.tokens_per_s = 10.0
    assert devices.wait_s(0, 20, began=0.0, now=5.0) == 0.0
    assert devices.wait_s(0, 20, began=5.0, now=5.5) == pytest.approx(1.5)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 100), st.floats(0, 10), st.floats(0, 3)), min_size=1))
def test_no_device_ever_does_more_than_its_pace(turns):
    devices, done = PacedDevices(), {}
    devices.tokens_per_s = 7.0
    for device, tokens, began, took in sorted(turns, key=lambda turn: turn[2]):
        now = began + took
        end = now + devices.wait_s(device, tokens, began, now)
        first, before = done.get(device, (began, 0))
        done[device] = (first, before + tokens)
        assert (before + tokens) <= 7.0 * (end - first) + 1e-6
