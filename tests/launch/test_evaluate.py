"""The evaluation command: what it prints is read by programs."""

import json
from pathlib import Path

import pytest

from launch.bench.environments import main as bench
from launch.evaluate import main


def evaluate(capfd: pytest.CaptureFixture[str], output: Path, words: str) -> tuple[int, list[dict], str]:
    """Exit code, the JSON lines, and what went to standard error."""
    code = main([*words.split(), "--json", "--output", str(output), "--environment.processes", "0"])
    out, err = capfd.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


@pytest.mark.parametrize(("policy", "rate"), [("gold", 1.0), ("noop", 0.0)])
def test_the_bounds_of_the_generated_test_tasks(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, policy: str, rate: float
) -> None:
    code, (*episodes, totals), _ = evaluate(
        capfd, tmp_path, f"--domain mock --split test --user solo --policy {policy}"
    )
    assert code == 0 and len(episodes) == 64
    assert {"task_id", "reward", "ended"} <= episodes[0].keys()
    assert {episode["reward"] for episode in episodes} == {rate}
    assert totals["success_rate"] == totals["pass^1"] == rate
    assert totals["ended"] == {"agent_stop": 64}
    assert len(Path(totals["transcripts"]).read_text().splitlines()) == 64


def test_trials_of_a_task_give_pass_hat_k(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, (*episodes, totals), _ = evaluate(capfd, tmp_path, "--policy gold --trials 3 --max-tasks 2")
    assert len(episodes) == 6
    assert [totals[f"pass^{k}"] for k in (1, 2, 3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--policy gold --domain hotel", "hotel"),
        ("--policy gold --split validation", "validation"),
        ("--policy gold --domain airline", "environment.user.kind"),
        ("--policy /no/such/model", "/no/such/model"),
        ("--policy gold --environment.max_turn 3", "environment.max_turns"),
    ],
)
def test_what_does_not_exist_is_one_paragraph_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, words: str, named: str
) -> None:
    code, lines, err = evaluate(capfd, tmp_path, words)
    assert (code, lines) == (2, [])
    assert named in err and "Traceback" not in err


def test_the_benchmark_of_environments_prints_one_record_a_concurrency(capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(["--domain", "mock", "--concurrency", "4,8", "--processes", "1", "--json"]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [record["concurrency"] for record in records] == [4, 8]
    for record in records:
        assert record["solved"] == 1.0
        assert all(record[name] > 0 for name in ("episodes_per_s", "tool_steps_per_s", "reset_ms", "score_ms"))
