"""The command that asks a run for a move, against the run's side of it."""

import threading
import time
from pathlib import Path

import pytest
import yaml

from launch import rebalance
from rl_system.allocation.decision import Move
from rl_system.allocation.requests import Taken, take_requests
from rl_system.tracking.json_lines import JsonLines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory as a run of 2 + 2 accelerators leaves it."""
    config = {"name": "a", "allocation": {"rollout": 2, "trainer": 2, "mode": "advise"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def answer(run: Path, **fields) -> None:
    """What a run does at a step boundary."""
    events = JsonLines(run / "events.jsonl", None)
    while not (requests := take_requests(run).requests):
        time.sleep(0.01)
    for request in requests:
        events.write({"event": "rebalance_request", "request": request.name} | fields)
    events.close()


def test_the_run_finds_what_was_asked(run):
    assert rebalance.main(["--run", str(run), "--to-trainer", "1"]) == 0
    [request] = take_requests(run).requests
    assert (request.move, request.count) == (Move.TO_TRAINER, 1)


@pytest.mark.parametrize("accepted, code", [(True, 0), (False, 2)])
def test_with_wait_the_runs_answer_decides_how_the_command_ends(accepted, code, run, capsys):
    answering = threading.Thread(target=answer, args=(run,), kwargs={"accepted": accepted, "reason": "too few"})
    answering.start()
    assert rebalance.main(["--run", str(run), "--to-rollout", "2", "--wait", "30"]) == code
    answering.join()
    captured = capsys.readouterr()
    assert ("accepted: 2 to rollout" in captured.out) == accepted
    assert ("too few" in captured.err) != accepted


def test_a_request_that_nobody_hears_is_withdrawn(run, capsys):
    assert rebalance.main(["--run", str(run), "--to-rollout", "1", "--wait", "0.1"]) == 2
    assert "withdrawn" in capsys.readouterr().err
    assert take_requests(run) == Taken()


@pytest.mark.parametrize("count", ["0", "-1", "3"])
def test_a_count_that_no_split_allows_is_refused_with_the_bounds(count, run, capsys):
    assert rebalance.main(["--run", str(run), "--to-rollout", count]) == 2
    error = capsys.readouterr().err
    assert f"--to-rollout is {count}" in error and "1 to 2 can move" in error


def test_a_run_that_keeps_its_split_is_named(run, capsys):
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("advise", "'off'"))
    assert rebalance.main(["--run", str(run), "--to-rollout", "1"]) == 2
    assert "allocation.mode 'off'" in capsys.readouterr().err


def test_a_directory_that_is_no_run_is_named(tmp_path, capsys):
    assert rebalance.main(["--run", str(tmp_path), "--to-rollout", "1"]) == 2
    assert str(tmp_path) in capsys.readouterr().err
