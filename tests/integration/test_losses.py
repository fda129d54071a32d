"""Actors that nobody takes the place of are killed or frozen, and the run goes on by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from launch.local_ray import LocalRay
from rl_system.tracking.json_lines import read_lines
from tests.rl_system.tracking.wandb_files import steps_to_sync

FINISH_S = 900
PARTS = {
    "Trainer": "the trainer of rank 0",
    "Dispatcher": "the dispatcher",
    "Reward": "the reward actor",
    "EnvironmentPool": "the environment pool",
    "Controller": "the controller",
}


def actor(cluster: LocalRay, kind: str) -> psutil.Process:
    for process in cluster.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if (process.cmdline() or [""])[0].startswith(f"ray::{kind}"):
                return process
    raise AssertionError(f"there is no {kind}")


def wait_for_step(following: subprocess.Popen, run: Path, step: int) -> None:
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + FINISH_S
    while not (metrics.exists() and any(line["step"] >= step for line in read_lines(metrics))):
        assert following.poll() is None, following.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_survives_the_death_of_every_part_with_every_step_done_once(submit, command, cluster, tmp_path):
    run, steps = tmp_path / "tau2_mock_cpu", len(PARTS) + 1
    settings = {"steps": steps, "checkpoint__every": 1, "evaluation__before": "false", "evaluation__after": "false"}
    following = submit("losses", command(**settings))
    for step, kind in enumerate(PARTS, 1):
        wait_for_step(following, run, step)
        os.kill(actor(cluster, kind).pid, signal.SIGKILL)
        time.sleep(1)
    output, _ = following.communicate(timeout=FINISH_S)
    assert f"done: {run}" in output and "Traceback" not in output, output
    assert [line["step"] for line in read_lines(run / "metrics.jsonl")] == list(range(1, steps + 1))
    events = read_lines(run / "events.jsonl")
    lost = [event["part"] for event in events if event["event"] == "part_lost"]
    assert lost == list(PARTS.values())
    clock = [event["time/wall_clock_s"] for event in events]
    assert clock == sorted(clock)
    assert steps_to_sync(run) == list(range(1, steps + 1))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_where_it_may_not_start_again_a_loss_ends_the_run_in_one_paragraph(submit, command, cluster, tmp_path):
    run = tmp_path / "tau2_mock_cpu"
    following = submit("ends", command(steps=50, recovery__attempts=0, checkpoint__every=1, evaluation__before="false"))
    wait_for_step(following, run, 1)
    os.kill(actor(cluster, "Trainer").pid, signal.SIGKILL)
    output, _ = following.communicate(timeout=FINISH_S)
    said = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in output and len(set(said)) == 1, output
    assert "the trainer of rank 0 was lost" in said[0] and "--resume goes on from" in said[0]
    assert "PartLost" in (run / "failure.txt").read_text()
    assert (run / "report.html").exists()
