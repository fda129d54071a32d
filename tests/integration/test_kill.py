"""A run whose every process is killed before its first checkpoint, and the same command line again, as a supervisor would."""

from __future__ import annotations

import subprocess

import pytest

from rl_system.tracking.json_lines import read_lines
from tests.integration.conftest import ROOT
from tests.integration.test_resume import kill_after
from tests.rl_system.tracking.wandb_files import rows_to_sync, steps_to_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FINISH_S = 200


def test_a_run_that_is_killed_before_its_first_checkpoint_is_finished_by_the_same_command(submit, command, cluster, tmp_path):
    run = tmp_path / "tau2_mock_cpu"
    line = command("--resume", steps=2, checkpoint__every=2, evaluation__before="false", evaluation__every=2)
    following = submit("first", line)
    kill_after(cluster, following, run, 1)
    assert not list((run / "checkpoints").glob("step_*"))
    begun = len(read_lines(run / "metrics.jsonl"))
    assert begun >= 1
    left = run / "episodes" / "group_000099.jsonl"
    left.write_text("{}\n")  # of a group that the second life does not come to

    output, _ = submit("second", line).communicate(timeout=FINISH_S)
    assert f"done: {run}" in output and "from the beginning, for there is no checkpoint" in output, output
    assert [each["step"] for each in read_lines(run / "metrics.jsonl")] == [1, 2]
    events = read_lines(run / "events.jsonl")
    assert [(each["kept_steps"], each["undone_steps"]) for each in events if each["event"] == "resume"] == [(0, begun)]
    kinds = [each["event"] for each in events]
    assert kinds.count("evaluation") == kinds.count("finished") == 1
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step_2"]
    assert kinds.count("checkpoint") == 1 and not left.exists()
    assert len([each for each in read_lines(run / "undone.jsonl") if each["file"] == "metrics.jsonl"]) == begun

    assert steps_to_sync(run) == [1, 2]
    assert [row["step"] for row in rows_to_sync(run) if "eval/success_rate" in row] == [2]

    # Once more: there is nothing left to do, and that is no error.
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=FINISH_S, check=True)
    assert f"complete: {run} has done all 2 steps" in done.stdout and done.stderr == "", done
    assert steps_to_sync(run) == [1, 2]
