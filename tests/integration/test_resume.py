"""A run that is killed and resumed against one that is left alone: the same batches, the same parameters, bit for bit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from launch.local_ray import LocalRay
from rl_system.tracking.json_lines import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
FINISH_S = 900

ACTORS = ("Controller", "Dispatcher", "Reward", "EnvironmentPool", "RolloutWorker", "Trainer")
STEPS, SAVED = 6, 3
REPEATABLE = {
    "steps": STEPS,
    "deterministic": "true",
    "rollout__max_staleness": 0,
    "executor__method": "tree",
    "checkpoint__every": SAVED,
    "checkpoint__keep": 4,
    "evaluation__before": "false",
    "evaluation__after": "false",
}


def processes_of_the_run(cluster: LocalRay) -> list[psutil.Process]:
    """The job's own command and all of its actors: engines, trainers, environments and the rest."""
    found = []
    for process in cluster.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            words = process.cmdline() or [""]
            if "launch.train" in words or words[0].startswith(tuple(f"ray::{actor}" for actor in ACTORS)):
                found.append(process)
    assert len(found) > len(ACTORS)
    return found


def kill_after(cluster: LocalRay, following: subprocess.Popen, run: Path, steps: int) -> None:
    """SIGKILL all of the run's processes at once when `steps` steps are on disk."""
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + FINISH_S
    while not metrics.exists() or len(read_lines(metrics)) < steps:
        assert following.poll() is None, following.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed = processes_of_the_run(cluster)
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(killed, 30)
    following.communicate(timeout=60)


def trees(run: Path) -> list[dict]:
    """The batches of all steps, in order."""
    found = sorted((run / "trees").glob("*.json"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
    return [json.loads(path.read_text()) for path in found]


def states(run: Path, step: int) -> dict[str, torch.Tensor]:
    """Parameters and optimizer states of a checkpoint, by file and name."""
    directory = run / "checkpoints" / f"step_{step}"
    return {
        f"{path.relative_to(directory)}:{name}": tensor
        for path in sorted(directory.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def samples(run: Path) -> dict[tuple[int, int], list]:
    """By group and member, what every turn sampled and with which probability."""
    return {
        (episode["group_id"], episode["index"]): [(turn["response_ids"], turn["logprobs"]) for turn in episode["turns"]]
        for file in sorted((run / "episodes").glob("group_*"))
        for episode in read_lines(file)
    }


def test_six_steps_equal_three_and_three_after_a_kill_bit_for_bit(submit, command, cluster, tmp_path):
    output, _ = submit("alone", command(name="alone", **REPEATABLE)).communicate(timeout=FINISH_S)
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    assert f"done: {alone}" in output, output

    following = submit("killed", command(name="killed", **REPEATABLE))
    kill_after(cluster, following, killed, SAVED + 1)
    assert not (killed / "checkpoints" / f"step_{STEPS}").exists()
    first_life = trees(killed)
    assert len(first_life) >= SAVED + 1

    output, _ = submit("resumed", command("--resume", name="killed", **REPEATABLE)).communicate(timeout=FINISH_S)
    assert f"done: {killed}" in output, output
    assert [line["step"] for line in read_lines(killed / "metrics.jsonl")] == list(range(1, STEPS + 1))

    def batches(found: list[dict]) -> list[tuple]:
        return [(tree["sequences"], tree["response_start"]) for tree in found]

    assert len(trees(alone)) == STEPS and batches(trees(killed)) == batches(trees(alone))
    assert batches(first_life) == batches(trees(alone))[: len(first_life)]
    expected, found = samples(alone), samples(killed)
    assert found == expected and len(expected) == STEPS * 2 * 2

    for step in (SAVED, STEPS):
        expected, found = states(alone, step), states(killed, step)
        assert found.keys() == expected.keys() and len(found) > 10
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    before, after = states(alone, SAVED), states(alone, STEPS)
    moved = [name for name in after if name.startswith("model/") and not torch.equal(before[name], after[name])]
    assert len(moved) > 10, "nothing was trained: this test shows nothing"
