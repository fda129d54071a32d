"""Accelerators that change sides in a real run: four slots, vLLM engines and trainers of a tiny random model."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl_system.allocation.observation import Split
from rl_system.config.load import load_config
from rl_system.tracking.batches import read_batch
from rl_system.tracking.json_lines import read_lines
from rl_system.tracking.names import unlisted
from rl_system.training.checkpoint_directory import MODEL, latest_checkpoint, open_checkpoint
from rl_system.training.learner import Learner
from rl_system.training.loading import load_model

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


CHANGE = 45
"""Policy update at which the load changes."""
SHIFTING = [
    {"step": 0, "sampled_tokens_per_s": 20, "trained_tokens_per_s": 2000},
    {"step": CHANGE, "sampled_tokens_per_s": 120, "trained_tokens_per_s": 200},
]
"""Of one accelerator: generation costs much at first, training afterwards. Far below what two cores do with so small a model,
so that it is the load that is measured and not the machine."""


def test_a_run_from_a_bad_split_follows_its_load_each_way_and_trains_as_a_run_that_stays(submit, command, tmp_path):
    steps, run = 90, tmp_path / "rebalance_mock_cpu"
    settings = {
        "allocation__rollout": 1, "allocation__trainer": 3, "allocation__pace": json.dumps(SHIFTING),
        "allocation__switch_cost_s": 1, "allocation__horizon_steps": 1000, "executor__method": "tree",
        "optimizer__learning_rate": "1e-4", "tracking__dump_batches": "true", "checkpoint__every": 0,
    }  # fmt: skip
    following = submit("auto", command(config="rebalance_mock_cpu", steps=steps, **settings))
    output, _ = following.communicate(timeout=FINISH_S)
    assert f"done: {run}" in output, output
    assert_nothing_was_lost(run, steps)

    events, lines = read_lines(run / "events.jsonl"), read_lines(run / "metrics.jsonl")
    began, finished = ([e for e in events if e["event"] == f"switch_{kind}"] for kind in ("began", "finished"))
    assert len(began) == len(finished) and all(event["outcome"] == "moved" for event in finished)
    early = [event for event in finished if event["step"] <= CHANGE]
    late = [event for event in finished if event["step"] > CHANGE]
    assert early[0]["move"] == "to_rollout" and late[-1]["move"] == "to_trainer"
    assert "is predicted at" in began[0]["reason"] and "to trainer" in output  # and the display says so
    assert groups_per_s(lines, early[-1]["step"], CHANGE) > 1.3 * groups_per_s(lines, 1, began[0]["step"])
    bad_again = next(event["step"] for event in began if event["step"] > CHANGE)
    # Less is to be gained here: three trainers share the cores that one had, and batches that wait flatter the first steps.
    assert groups_per_s(lines, late[-1]["step"], steps) > 1.1 * groups_per_s(lines, CHANGE + 1, bad_again + 1)
    assert "Accelerators over time" in (run / "report.html").read_text()
    assert_trained_as_a_single_trainer_would(run, lines)


def groups_per_s(lines: list[dict], after: int, until: int) -> float:
    """End to end, of the steps `after` < step <= `until`."""
    seconds = lines[until - 1]["time/wall_clock_s"] - lines[after - 1]["time/wall_clock_s"]
    return 2 * (until - after) / seconds


def assert_trained_as_a_single_trainer_would(run: Path, lines: list[dict]) -> None:
    """The recorded batches, trained on by one trainer that nothing is ever moved from: the losses are the same, and so are
    the parameters in the end.
    """
    config = load_config(run / "config.yaml", [])
    learner = Learner.of(config, load_model(config.model))
    for line in lines:
        alone = learner.update(read_batch(run / "batches" / f"step_{line['step']:06}.npz"))
        for name in ("train/loss", "train/grad_norm", "train/trained_tokens"):
            assert alone[name] == pytest.approx(line[name], rel=1e-3, abs=1e-5), (line["step"], name)
    model = open_checkpoint(latest_checkpoint(run / "checkpoints")).path / MODEL
    trained = load_model(config.model.model_copy(update={"path": str(model)}))
    start = load_model(config.model)
    for (name, mine), theirs, before in zip(
        learner.model.named_parameters(), trained.parameters(), start.parameters(), strict=True
    ):
        moved = (theirs - before).abs().max()
        assert (mine - theirs).abs().max() <= 0.05 * moved + 1e-6, name
