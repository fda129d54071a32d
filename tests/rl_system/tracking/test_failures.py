"""Which failures are shown, and when a run of nothing but failures is given up."""

from pathlib import Path

import pytest

from rl_system.records import Failure, Task
from rl_system.tracking.failure_log import FailureLog
from rl_system.tracking.failures import FEWEST_EPISODES, RECENT_TASKS, SHOWN_KINDS, FailureWatch

BROKEN = Failure("environment", "step raised KeyError: 'x' (game.py, line 3, in step)", "Traceback …\nKeyError: 'x'")


def task(number: int) -> Task:
    return Task("game", "d", str(number), "train")


def play(watch: FailureWatch, tasks, failure: Failure | None, *, episodes: int = 8, now: float = 0.0) -> None:
    """A group of episodes of each of `tasks`, one after another, each of a second."""
    for number in tasks:
        for episode in range(episodes):
            watch.started(task(number), episode, now)
            watch.ended(task(number), episode, now + 1, failure)


def test_an_environment_that_fails_in_nearly_every_episode_of_several_tasks_is_given_up_with_the_reason():
    watch = FailureWatch(tasks=128)
    play(watch, range(2), BROKEN)
    assert watch.verdict(1.0) is None, "two tasks say nothing about the others"
    play(watch, [2], BROKEN)
    reason = watch.verdict(1.0)
    assert "24 of the last 24 episodes failed" in reason and BROKEN.what in reason and "3 of 3 tasks" in reason


@pytest.mark.parametrize("tasks", [1, 2])
def test_with_fewer_tasks_all_of_them_must_fail(tasks):
    watch = FailureWatch(tasks)
    play(watch, range(tasks), BROKEN, episodes=FEWEST_EPISODES // tasks - 1)
    assert watch.verdict(1.0) is None
    play(watch, range(tasks), BROKEN)
    assert watch.verdict(1.0) is not None


def test_some_broken_tasks_among_good_ones_are_no_reason_to_give_up():
    watch = FailureWatch(tasks=128)
    for number in range(100):
        play(watch, [number], BROKEN if number % 4 else None, episodes=3)
        assert watch.verdict(1.0) is None


def test_broken_tasks_that_fail_at_once_do_not_outvote_good_ones_that_take_their_time():
    watch = FailureWatch(tasks=128)
    for number in range(100, 103):
        watch.started(task(number), 0, 0.0)
    play(watch, range(10), BROKEN, now=5.0)
    assert watch.verdict(6.0) is None
    for number in range(100, 103):
        watch.ended(task(number), 0, 6.0, BROKEN)
    assert watch.verdict(6.0) is not None


def test_tasks_that_began_a_moment_ago_say_nothing_yet():
    watch = FailureWatch(tasks=128)
    play(watch, range(4), BROKEN, now=60.0)
    for number in range(100, 132):
        watch.started(task(number), 0, 60.9)
    assert watch.verdict(61.0) is not None


def test_an_environment_that_breaks_in_mid_run_is_given_up_too_and_one_that_recovers_is_not():
    watch = FailureWatch(tasks=128)
    play(watch, range(50), None)
    play(watch, range(50, 50 + RECENT_TASKS - 2), BROKEN)
    assert watch.verdict(1.0) is None
    play(watch, range(70, 72), None)
    play(watch, range(80, 80 + RECENT_TASKS - 2), BROKEN)
    assert watch.verdict(1.0) is None
    play(watch, range(100, 102), BROKEN)
    assert watch.verdict(1.0) is not None


def test_a_sampler_that_fails_is_shown_but_says_nothing_about_the_environment():
    watch = FailureWatch(tasks=128)
    play(watch, range(10), Failure("generation", "EngineBroken: the engine failed"))
    assert len(watch.take_news()) == 1 and watch.verdict(1.0) is None and watch.failures == 0


def test_an_episode_that_was_cancelled_is_neither_running_nor_failed():
    watch = FailureWatch(tasks=128)
    watch.started(task(100), 0, 0.0)
    play(watch, range(3), BROKEN, now=5.0)
    assert watch.verdict(6.0) is None, "three of four tasks are not nearly all"
    watch.cancelled(task(100), 0)
    assert "3 of 3 tasks" in watch.verdict(6.0)


def test_each_kind_of_failure_is_shown_once_and_not_too_many():
    watch = FailureWatch(tasks=128)
    play(watch, range(3), BROKEN)
    (news,) = watch.take_news()
    assert (news.task, news.failure) == (task(0), BROKEN) and watch.take_news() == []
    other = Failure("environment", "step raised KeyError: 'y' (game.py, line 3, in step)")
    play(watch, [3], other, episodes=1)
    assert watch.take_news() == [] and watch.times_seen(BROKEN) == 25
    for line in range(10, 30):
        play(watch, [4], Failure("environment", f"step raised KeyError: 'x' (game.py, line {line}, in step)"), episodes=1)
    assert len(watch.take_news()) == SHOWN_KINDS - 1


def test_the_log_holds_the_whole_traceback_and_is_bounded(tmp_path: Path):
    path = tmp_path / "run" / "failures.log"
    log = FailureLog(path, most_bytes=2000)
    assert not path.exists()
    for times in range(1, 10):
        log.write(task(7), BROKEN, times)
    text = path.read_text()
    assert text.count("task 7 of game, train: step raised KeyError") == 3 and "    KeyError: 'x'\n" in text
    for _ in range(3):
        log.write(task(8), Failure("environment", "long \ud835", "x" * 1500), 1)
    assert 2000 <= path.stat().st_size < 2100 and "[this file is full]" in path.read_text()
    FailureLog(path, most_bytes=2000).write(task(9), BROKEN, 1)
    assert "task 9" not in path.read_text()
