import io

import pytest

from rl_system.tracking.progress import LiveTable, PlainLines, make_progress, split, waits

STEP = {
    "step": 3,
    "time/wall_clock_s": 75.0,
    "reward/mean": 0.5,
    "reward/success_rate": 0.25,
    "off_policy/staleness_mean": 1.0,
    "rollout/tokens_per_s": 1234.0,
    "perf/train_tokens_per_s": 987.0,
    "perf/train_wait_share": 0.4,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_one_complete_line_a_step():
    stream = io.StringIO()
    progress = make_progress(10, stream=stream)
    assert isinstance(progress, PlainLines)
    progress.step(STEP)
    progress.status(rollout="24 episodes running")
    progress.step({"step": 4, "time/wall_clock_s": 80.0})
    progress.close()
    first, second = stream.getvalue().splitlines()
    for text in ("step 3/10", "time 1:15", "reward 0.500", "success 25%", "staleness 1.0", "1,234", "987",
                 "trainer waits for groups 40%"):  # fmt: skip
        assert text in first
    assert second.startswith("step 4/10")
    assert "reward" not in second


@pytest.mark.parametrize(
    "advised, shown", [({}, "3+1"), ({"rollout": 3, "trainer": 1}, "3+1"), ({"rollout": 2, "trainer": 2}, "3+1 → 2+2")]
)
def test_a_step_shows_the_split_and_the_one_that_the_controller_would_choose(advised, shown):
    metrics = {"controller/rollout": 3.0, "controller/trainer": 1.0}
    assert split(metrics | {f"controller/advised_{side}": float(count) for side, count in advised.items()}) == shown
    assert split({}) == ""


def test_a_terminal_gets_a_table_with_what_each_side_does_now():
    stream = Terminal()
    progress = make_progress(10, stream=stream)
    assert isinstance(progress, LiveTable)
    try:
        progress.step(STEP)
        progress.status(rollout="24 episodes running", trainer="waiting for a batch")
        progress.note("report: runs/x/report.html")
    finally:
        progress.close()
    for text in ("3/10", "0.500", "24 episodes running", "waiting for a batch", "report: runs/x/report.html"):
        assert text in stream.getvalue()


def test_a_run_that_asked_for_no_progress_prints_nothing(capsys):
    progress = make_progress(10, shown=False)
    progress.step(STEP)
    progress.note("text")
    progress.close()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({}, ""),
        ({"perf/rollout_idle_share": 0.01}, "nothing waits"),
        ({"perf/rollout_idle_share": 0.5, "perf/permit_wait_share": 0.3},
         "engines idle 50%, episode slots held by staleness 30%"),
    ],
)  # fmt: skip
def test_only_waiting_that_matters_is_named(shares, expected):
    assert waits(shares) == expected
