"""Every step and every evaluation is in W&B once and only once, whatever happened: with the real client, offline by the files
that it leaves and would upload, online against a server of the tests.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rl_system.config.load import build_config
from rl_system.tracking import wandb_feed
from rl_system.tracking.json_lines import read_lines
from rl_system.tracking.tracker import Tracker, settle
from rl_system.tracking.wandb_run import FLUSH_S
from tests.rl_system.tracking.wandb_files import rows_to_sync, steps_to_sync
from tests.rl_system.tracking.wandb_server import WandbServer

ROOT = Path(__file__).parents[3]
WANDB = Path(sys.executable).with_name("wandb")
KILLED = -signal.SIGKILL


@pytest.fixture
def server():
    running = WandbServer()
    yield running
    running.stop()


@pytest.fixture
def wandb_environment(tmp_path) -> dict[str, str]:
    """Without a login, and with the settings of no other W&B."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return kept | {"NETRC": str(tmp_path / "netrc"), "PYTHONPATH": str(ROOT), "WANDB_CONFIG_DIR": str(tmp_path / "wandb")}


@pytest.fixture
def live(tmp_path, wandb_environment):
    """One life of a run in a process of its own: `live(resume_step, last_step, how, …)`."""

    def start(resume, last, how="finish", evaluate="-", server=None, mode="auto", before_kill_s=0.0) -> None:
        environment = wandb_environment | {"BEFORE_KILL_S": str(before_kill_s)}
        if server is not None:
            environment |= {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "k" * 40}
            environment |= {"WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "2"}
        words = [str(tmp_path), mode, "none" if resume is None else str(resume), str(last), evaluate, how]
        command = [sys.executable, "-m", "tests.rl_system.tracking.feeding", *words]
        done = subprocess.run(command, env=environment, cwd=ROOT, timeout=120, capture_output=True, text=True)
        assert done.returncode == (0 if how == "finish" else KILLED), done.stderr

    return start


@pytest.fixture
def run(tmp_path) -> Path:
    return tmp_path / "run"


def steps(run: Path) -> list[int]:
    return [line["step"] for line in read_lines(run / "metrics.jsonl")]


def events(run: Path, kind: str) -> list[dict]:
    return [line for line in read_lines(run / "events.jsonl") if line["event"] == kind]


@pytest.mark.parametrize("how", ["kill", "kill-all"])
def test_after_a_kill_and_a_resume_wandbs_files_hold_every_step_and_evaluation_once(live, run, how):
    live(None, 3, how, evaluate="2")
    assert steps_to_sync(run) in ([], [1, 2, 3])  # as far as W&B's program had come
    live(2, 5, evaluate="2,4")
    assert steps(run) == steps_to_sync(run) == [1, 2, 3, 4, 5]
    evaluated = [row["step"] for row in rows_to_sync(run) if "eval/success_rate" in row]
    assert evaluated == [2, 4]
    assert [row["_step"] for row in rows_to_sync(run)] == list(range(7))


def test_a_row_reaches_wandbs_file_within_seconds_so_that_a_kill_takes_little(live, run):
    live(None, 3, "kill-all", before_kill_s=3 * FLUSH_S)
    assert steps_to_sync(run) == [1, 2, 3]


def test_steps_that_are_undone_after_a_run_ended_in_order_are_in_wandbs_files_as_they_were_done_again(live, run):
    live(None, 4, evaluate="4")
    live(2, 3)
    assert steps(run) == steps_to_sync(run) == [1, 2, 3]
    assert not any("eval/success_rate" in row for row in rows_to_sync(run))


def test_a_run_that_was_killed_when_it_was_complete_is_settled(live, run, tmp_path, wandb_environment, monkeypatch):
    monkeypatch.setenv("NETRC", wandb_environment["NETRC"])
    live(None, 3, "kill-all")
    config = build_config({"name": "run", "output": str(tmp_path), "tracking": {"wandb": "offline"}})
    settle(config)
    assert steps_to_sync(run) == [1, 2, 3] and events(run, "resume") == []
    files = sorted((run / "wandb").glob("offline-run-*"))
    settle(config)
    assert sorted((run / "wandb").glob("offline-run-*")) == files


def sync(run: Path, server: WandbServer, environment: dict[str, str]) -> None:
    environment = environment | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "k" * 40}
    done = subprocess.run([WANDB, "sync", "--yes"], env=environment, cwd=run, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_was_uploaded_between_two_lives_is_not_uploaded_again(live, run, server, wandb_environment):
    live(None, 3)
    sync(run, server, wandb_environment)
    assert server.steps() == [1, 2, 3]
    live(3, 5)
    sync(run, server, wandb_environment)
    assert server.steps() == [1, 2, 3, 4, 5] and len(server.runs) == 1 and server.repeated == []


def test_an_upload_between_two_lives_that_holds_undone_steps_is_replaced(live, run, server, wandb_environment):
    live(None, 4)
    sync(run, server, wandb_environment)
    live(2, 5)
    sync(run, server, wandb_environment)
    old, new = server.runs
    assert server.steps(old) == [1, 2, 3, 4] and server.steps(new) == [1, 2, 3, 4, 5]
    (event,) = events(run, "wandb_replaced")
    assert (event["run"], event["by"], event["reason"]) == (old, new, "it holds steps that were undone")


@pytest.mark.parametrize("before_kill_s", [0, 6])
def test_online_a_resume_sends_what_the_server_lacks(live, run, server, before_kill_s):
    live(None, 3, "kill-all", server=server, evaluate="1", before_kill_s=before_kill_s)
    if before_kill_s:
        assert server.steps() == [1, 2, 3]
    live(3, 5, server=server)
    assert server.steps() == steps(run) == [1, 2, 3, 4, 5]
    assert len(server.runs) == 1 and server.repeated == []


def test_online_steps_that_were_undone_make_a_new_run_that_holds_everything(live, run, server):
    live(None, 4, server=server)
    live(2, 5, server=server)
    old, new = server.runs
    assert server.steps(old) == [1, 2, 3, 4] and server.steps(new) == steps(run) == [1, 2, 3, 4, 5]
    assert events(run, "wandb_replaced")[0]["by"] == new


class Nowhere:
    """Where a server was, or will be."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"


def test_a_server_that_is_away_ends_no_run_and_gets_everything_when_it_is_back(live, run, monkeypatch):
    nowhere = Nowhere()
    live(None, 3, server=nowhere, mode="auto")
    (event,) = events(run, "wandb_offline")
    assert event["reason"] and steps(run) == steps_to_sync(run) == [1, 2, 3]
    server = WandbServer(nowhere.port)
    try:
        live(3, 5, server=server)
        assert server.steps() == [1, 2, 3, 4, 5] and server.repeated == [] and steps_to_sync(run) == []
    finally:
        server.stop()


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    values = {"name": "run", "output": str(tmp_path), "steps": 9, "tracking": {"progress": False, "wandb": "offline"}}
    return build_config(values)


def test_wandbs_own_program_may_die_and_every_step_is_in_its_files_in_the_end(config, run, monkeypatch):
    monkeypatch.setattr(wandb_feed, "RETRY_S", 0.0)
    with Tracker(config) as tracker:
        tracker.step(1, {})
        for child in psutil.Process().children(recursive=True):
            if "wandb" in child.name():
                child.kill()
                child.wait(10)
        for step in range(2, 7):
            tracker.step(step, {})
    assert events(run, "wandb_lost")
    assert steps(run) == steps_to_sync(run) == [1, 2, 3, 4, 5, 6]


def test_a_folder_that_cannot_be_written_ends_no_run(config, run):
    run.mkdir()
    (run / "wandb").write_text("a file, where a folder is wanted")
    with Tracker(config) as tracker:
        tracker.step(1, {})
        tracker.evaluation({"eval/success_rate": 1.0})
    assert steps(run) == [1]
    assert all("wandb" in event["reason"] for event in events(run, "wandb_lost")) and events(run, "wandb_lost")


def test_offline_files_of_an_unknown_life_are_replaced_as_well(live, run):
    """As they lie in the directory of a run that was begun before there was a journal of them, or whose journal is lost."""
    live(None, 3)
    (run / "wandb" / "sessions.jsonl").unlink()
    live(3, 4)
    assert steps_to_sync(run) == [1, 2, 3, 4]
