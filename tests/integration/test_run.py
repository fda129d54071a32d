"""The whole loop with real components: Ray jobs, vLLM, τ²-bench and a tiny random model."""

import json
import subprocess
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_system.tracking.names import unlisted
from tests.integration.documented import from_another_folder

pytestmark = pytest.mark.timeout(600)
FINISH_S = 200


WITH_A_CRITIC = {
    "algorithm__advantage": "gae",
    "rollout__over_sample": 1,
    "environment__shuffle_window": "null",
    "environment__curriculum__enabled": "true",
    # Engines score at temperature 1 and sample at this one.
    "rollout__sampling__temperature": 0.7,
}
"""What keeps most state between steps: a second model with its optimizer, and the outcomes of every task."""


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_documented_command_trains_measures_evaluates_and_goes_on_after_a_resume(
    shell, flags, submit, command, home, tmp_path
):
    output = shell(from_another_folder(tmp_path) + flags(**WITH_A_CRITIC, evaluation__every=1))
    run = home / "runs" / "tau2_mock_cpu"
    assert f"done: {run}" in output, output

    lines = read(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert unlisted({name for line in lines for name in line}) == []
    for line in lines:
        assert line["off_policy/staleness_max"] <= 1
        assert line["train/grad_norm"] > 0 and line["tree/compression"] > 1.5
        assert line["train/critic_grad_norm"] > 0 and -1 < line["train/value_mean"] <= 0
        assert line["rollout/curriculum_seen_share"] > 0 and "rollout/cancelled_episodes" in line
    # The first line may be written before the first update reached the workers; all later ones have compared.
    assert all(line["rollout/logprob_gap"] < 1e-4 for line in lines[1:])
    evaluations = [event for event in read(run / "events.jsonl") if event["event"] == "evaluation"]
    assert [event["step"] for event in evaluations] == [0, 1, 2, 3]
    trained = [event for event in read(run / "events.jsonl") if event["event"] == "trained"]
    assert [event["step"] for event in trained] == [1, 2, 3]
    for step in range(4):
        # Beside the training groups, and yet by one policy: the newest.
        played = read(run / "episodes" / f"evaluation_step_{step}.jsonl")
        assert {version for episode in played for turn in episode["turns"] for version in turn["versions"]} == {step}

    episodes = [episode for file in sorted((run / "episodes").glob("group_*")) for episode in read(file)]
    used = {group for event in trained for group in event["groups"]}
    assert used <= {episode["group_id"] for episode in episodes if "dropped" not in episode}
    versions = {version for episode in episodes for turn in episode["turns"] for version in turn["versions"]}
    assert versions >= {0, 1} and versions <= {0, 1, 2, 3}
    trees = [json.loads((run / "trees" / f"tau2_mock_cpu_step_{step}.json").read_text()) for step in (1, 2, 3)]
    assert all(len(tree["sequences"]) >= 4 for tree in trees)
    assert "<svg" in (run / "report.html").read_text() and "http://" not in (run / "report.html").read_text().replace(
        "http://www.w3.org", ""
    )
    assert list((run / "wandb").glob("offline-run-*"))

    trained = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step_3" / "model")
    before = AutoModelForCausalLM.from_pretrained(command()[command().index("--model.path") + 1])
    assert any(
        not torch.equal(a, b) for a, b in zip(trained.parameters(), before.parameters(), strict=True)
    )

    resumed = command("--resume", steps=4, output=home / "runs", **WITH_A_CRITIC)
    output, _ = submit("second", resumed).communicate(timeout=FINISH_S)
    assert f"done: {run}" in output, output
    lines = read(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[3]["off_policy/staleness_max"] <= 1
    assert lines[3]["time/wall_clock_s"] > lines[2]["time/wall_clock_s"]


def test_stopping_the_job_ends_the_run_cleanly_with_its_metrics_on_disk(submit, command, cluster, tmp_path):
    following = submit("stopped", command(steps=10_000, evaluation__before="false"))
    metrics = tmp_path / "tau2_mock_cpu" / "metrics.jsonl"
    deadline = time.monotonic() + FINISH_S
    while not (metrics.exists() and read(metrics)):
        assert following.poll() is None, following.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.5)
    stop = [cluster.ray, "job", "stop", "stopped"]
    subprocess.run(stop, env=cluster.client_environment, check=True, timeout=90, capture_output=True)
    output, _ = following.communicate(timeout=60)
    assert f"stopped: {tmp_path / 'tau2_mock_cpu'}" in output, output
    assert "Traceback" not in output
    assert read(metrics)
