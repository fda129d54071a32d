import io

import pytest
from rich.console import Console

from rl_system.tracking.progress import LiveTable, PlainLines, fitting, make_progress, split, waits

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


@pytest.fixture(autouse=True)
def no_width_of_this_shell(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


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


BUSY = STEP | {
    "tree/compression": 10.6,
    "controller/rollout": 12.0,
    "controller/trainer": 4.0,
    "controller/advised_rollout": 10.0,
    "controller/advised_trainer": 6.0,
    "perf/rollout_idle_share": 0.26,
    "perf/permit_wait_share": 0.54,
}


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_of_the_live_table_is_wider_than_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = make_progress(1000, stream=stream)
    progress.step(BUSY)
    progress.step(BUSY | {"step": 999})
    progress.status(rollout="24 episodes running", trainer="waits for groups", controller="less than the margin " * 9)
    drawn = progress._draw()
    progress.close()
    console = Console(width=width, file=io.StringIO())
    console.print(drawn)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 1 + 2 + 4  # heading, two steps, what the last waited for, three sides
    for text in ("999/1000", "0.500"):
        assert text in console.file.getvalue()
    assert "engines idle 26%" in console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_plain_line_is_no_wider_than_whoever_reads_it_says(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    progress = make_progress(14, stream=stream)
    progress.step(BUSY)
    (line,) = stream.getvalue().splitlines()
    assert len(line) <= width and "step 3/14" in line and "reward 0.500" in line
    assert ("staleness" in line) == (width >= 80)


def test_what_is_left_out_first_is_what_matters_least():
    lengths = {"step": 5, "time": 5, "reward": 6, "staleness": 9, "split": 5, "waits": 60}
    assert fitting(lengths, 200) == list(lengths)
    assert fitting(lengths, 80) == ["step", "time", "reward", "staleness", "split"]
    assert fitting(lengths, 32) == ["step", "time", "reward", "staleness"]
    assert fitting(lengths, 1) == ["step", "reward"]


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


class Abandoned(io.StringIO):
    """As a pipe whose reader ended."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_goes_on_when_whoever_watched_it_is_gone(terminal):
    progress = make_progress(10, stream=Abandoned(terminal))
    progress.step(STEP)
    progress.note("text")
    progress.close()
