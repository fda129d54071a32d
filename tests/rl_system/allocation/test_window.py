import pytest

from rl_system.allocation.observation import Split, SwitchCost
from rl_system.allocation.window import ObservationWindow


@pytest.fixture
def window() -> ObservationWindow:
    return ObservationWindow(0.0, slots=8, groups_per_batch=2, max_staleness=1)


def close(window, now, **changes):
    known = {"step": 1, "split": Split(2, 1), "sampled_tokens": 500.0, "queue": 0, "method": "tree"}
    return window.close(now, **(known | changes))


def test_the_first_window_is_disturbed_since_the_pipeline_fills_up(window):
    assert close(window, 10.0).disturbed
    assert not close(window, 20.0).disturbed


def test_engines_that_are_up_but_have_no_request_are_idle(window):
    window.engines.set(2, 0.0)
    window.busy_engines.set(2, 0.0)
    window.busy_engines.set(1, 5.0)
    assert close(window, 10.0).rollout.idle == pytest.approx(0.25)


def test_an_engine_that_is_down_is_not_idle(window):
    window.engines.set(2, 0.0)
    window.busy_engines.set(2, 0.0)
    window.busy_engines.set(1, 5.0)
    window.engines.set(1, 5.0)
    assert close(window, 10.0).rollout.idle == pytest.approx(0.0)


def test_slots_that_wait_for_permits_count_by_time_and_by_number(window):
    window.empty_slots.set(0, 0.0)
    window.empty_slots.set(4, 6.0)
    assert close(window, 10.0).rollout.waiting == pytest.approx(4 * 4 / 80)


def test_the_share_of_tools_is_of_running_episodes_only(window):
    window.empty_slots.set(4, 0.0)
    window.in_tools.set(2, 0.0)
    assert close(window, 10.0).rollout.tool_share == pytest.approx(0.5)


def test_rates_of_both_sides_are_over_the_whole_window(window):
    close(window, 100.0)
    window.trainer.switch("updating", 104.0)
    window.group_finished(3.0)
    window.group_finished(5.0)
    window.update_finished(6.0, 2, sequence_tokens=900.0, unique_tokens=300.0, staleness=0.5)
    window.trainer.switch("waiting", 110.0)
    seen = close(window, 110.0)
    assert seen.rollout.groups_per_s == pytest.approx(0.2)
    assert seen.rollout.tokens_per_s == pytest.approx(50.0)
    assert (seen.rollout.group_latency_s, seen.rollout.slowest_group_s) == (4.0, 5.0)
    assert seen.trainer.groups_per_s == pytest.approx(0.2)
    assert seen.trainer.seconds_per_update == 6.0
    assert seen.trainer.waiting == pytest.approx(0.4)
    assert seen.trainer.compression == pytest.approx(3.0)
    assert seen.staleness == 0.5


def test_nothing_of_one_window_is_left_in_the_next(window):
    window.group_finished(3.0)
    window.episode_failed()
    window.update_finished(1.0, 2, 100.0, 50.0, 1.0)
    window.switch_finished(SwitchCost(True, 9.0))
    first, second = close(window, 10.0), close(window, 20.0, sampled_tokens=0.0)
    assert first.switches == (SwitchCost(True, 9.0),) and first.rollout.failures == 1
    assert second.switches == () and second.rollout.failures == 0 and not second.disturbed
    assert second.rollout.groups_per_s == second.trainer.groups_per_s == second.trainer.seconds_per_update == 0.0


def test_a_window_that_contains_a_switch_is_disturbed(window):
    close(window, 10.0)
    window.disturb()
    assert close(window, 20.0).disturbed
