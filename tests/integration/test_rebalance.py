"""Accelerators that change sides in a real run: four slots, vLLM engines and trainers of a tiny random model."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl_system.allocation.observation import Split
from rl_system.tracking.json_lines import read_lines
from rl_system.tracking.names import unlisted
from rl_system.training.checkpoint_directory import latest_checkpoint, open_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SLOTS = 4
BAD = {"allocation__rollout": 3, "allocation__trainer": 1, "evaluation__before": "false", "evaluation__after": "false"}
SWITCH_S = 400
FINISH_S = 600


def wait_for(run: Path, following: subprocess.Popen, kind: str, count: int) -> list[dict]:
    """All events of a kind, once there are `count`."""
    deadline = time.monotonic() + SWITCH_S
    while len(events := [e for e in read_lines(run / "events.jsonl") if e["event"] == kind]) < count:
        assert following.poll() is None, following.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return events


def ask(run: Path, *words: str) -> None:
    command = [sys.executable, "-m", "launch.rebalance", "--run", str(run), "--wait", "120", *words]
    subprocess.run(command, check=True, timeout=180)


def assert_nothing_was_lost(run: Path, steps: int) -> None:
    """Steps came once and in order, every group that was started was trained on or is accounted for, no token was too
    old, and the engines served what the trainers had, before, during and after every switch."""
    lines = read_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert unlisted({name for line in lines for name in line}) == []
    assert all(line["off_policy/staleness_max"] <= 1 for line in lines)
    assert all(line.get("rollout/logprob_gap", 0) < 1e-4 for line in lines)
    assert all(line["train/updates"] == 1 and line["train/grad_norm"] > 0 for line in lines)

    ledger = open_checkpoint(latest_checkpoint(run / "checkpoints")).state["controller"]["ledger"]
    dropped = sum(ledger["dropped"].values())
    assert ledger["trained"] == ledger["serving"] == steps
    assert ledger["next_group_id"] == 2 * steps + dropped + len(ledger["finished"])
    played = {int(path.stem.removeprefix("group_")) for path in (run / "episodes").glob("group_*")}
    assert len(played) >= 2 * steps and played <= set(range(ledger["next_group_id"]))

    for path in sorted((run / "episodes").glob("group_*")):
        for episode in read_lines(path):
            versions = np.concatenate([turn["versions"] for turn in episode["turns"]])
            assert (np.diff(versions) >= 0).all() and versions.min() >= 0
            assert all(turn["finish_reason"] in ("stop", "length") for turn in episode["turns"])


def test_a_run_that_starts_at_a_bad_split_is_moved_each_way_by_request_and_loses_nothing(submit, command, tmp_path):
    steps, run = 200, tmp_path / "tau2_mock_cpu"
    following = submit("requests", command(steps=steps, checkpoint__every=20, **BAD))
    wait_for(run, following, "allocation", 1)
    ask(run, "--to-trainer", "1")
    wait_for(run, following, "switch_finished", 1)
    ask(run, "--to-rollout", "1")
    output, _ = following.communicate(timeout=FINISH_S)
    assert f"done: {run}" in output, output

    finished = [event for event in read_lines(run / "events.jsonl") if event["event"] == "switch_finished"]
    assert [(event["outcome"], event["split"]) for event in finished] == [("moved", [2, 2]), ("moved", [3, 1])]
    assert all(0 < event["cost_s"] < event["seconds"] for event in finished)
    lines = read_lines(run / "metrics.jsonl")
    splits = [Split(int(line["controller/rollout"]), int(line["controller/trainer"])) for line in lines]
    assert splits[0] == Split(3, 1) and Split(2, 2) in splits
    assert_nothing_was_lost(run, steps)


def test_a_controller_that_may_move_accelerators_gives_one_to_the_side_that_limits(submit, command, tmp_path):
    steps, run = 25, tmp_path / "tau2_mock_cpu"
    costly_training = {
        "executor__method": "dense", "rollout__group_size": 8, "rollout__sampling__max_new_tokens": 8,
        "environment__concurrency": 32, "allocation__mode": "auto", "allocation__window_steps": 1,
        "allocation__switch_cost_s": 1, "allocation__horizon_steps": 1000,
    }  # fmt: skip
    following = submit("auto", command(steps=steps, **(BAD | costly_training)))
    output, _ = following.communicate(timeout=FINISH_S)
    assert f"done: {run}" in output, output
    events = read_lines(run / "events.jsonl")
    began = [event for event in events if event["event"] == "switch_began"]
    finished = [event for event in events if event["event"] == "switch_finished"]
    assert began[0]["move"] == "to_trainer" and "2 rollout + 2 training is predicted" in began[0]["reason"]
    assert finished[0]["outcome"] == "moved" and finished[0]["split"] == [2, 2]
    assert len(finished) == len(began)
    assert_nothing_was_lost(run, steps)
