"""The evaluation command: what it prints is read by programs."""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.bench.environments import main as bench
from launch.evaluate import main
from launch.evaluation_config import evaluation_config, policy_label


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
        ("", "--policy is missing"),
        ("--policy gold --environment.name tests.envs.breaking --split +", "has no task in split '+'"),
        ("--policy gold --environment.name tests.envs.no_such", "tests.envs.no_such"),
        ("--policy gold --max-tasks -3", "--max-tasks is -3"),
    ],
)
def test_what_does_not_exist_is_one_paragraph_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, words: str, named: str
) -> None:
    code, lines, err = evaluate(capfd, tmp_path, words)
    assert (code, lines) == (2, [])
    assert named in err and "Traceback" not in err


def summary(output: Path) -> dict:
    """Of the only evaluation in `output`."""
    (file,) = output.glob("*/summary.json")
    return json.loads(file.read_text(), parse_constant=pytest.fail)


def played(output: Path) -> list[dict]:
    (file,) = output.glob("*/episodes.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


TELECOM = "--config configs/tau2_telecom_solo_qwen3_8b.yaml --policy gold"
BREAKING = "--environment.name tests.envs.breaking --policy gold"


def settings(words: str) -> tuple[str | None, str, str, int, int | None, float]:
    """Domain, split, user, trials, tasks and temperature that a command line asks for."""
    parser_options = {"agent", "domain", "split", "user", "trials", "max_tasks", "temperature", "policy", "config"}
    options = argparse.Namespace(**dict.fromkeys(parser_options))
    rest = []
    for word in words.split():
        name, _, value = word.removeprefix("--").partition("=")
        if name.replace("-", "_") in parser_options:
            kinds = {"trials": int, "max_tasks": int, "temperature": float, "config": Path}
            name = name.replace("-", "_")
            setattr(options, name, kinds.get(name, str)(value))
        else:
            rest.append(word)
    config = evaluation_config(options, rest)
    evaluation, environment = config.evaluation, config.environment
    return (
        environment.domain, environment.split, environment.user.kind, evaluation.episodes_per_task, evaluation.max_tasks,
        evaluation.temperature,
    )  # fmt: skip


FILE = "--config=configs/tau2_telecom_solo_qwen3_8b.yaml --policy=gold"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--policy=gold", ("mock", "test", "solo", 1, None, 0.0)),
        ("--policy=gold --environment.name=examples.guessing", (None, "test", "solo", 1, None, 0.0)),
        ("--policy=gold --environment.split=train", ("mock", "train", "solo", 1, None, 0.0)),
        ("--policy=gold --evaluation.split=base", ("mock", "base", "solo", 1, None, 0.0)),
        (FILE, ("telecom", "test", "solo", 4, None, 1.0)),
        (f"{FILE} --environment.split=train", ("telecom", "train", "solo", 4, None, 1.0)),
        (f"{FILE} --split=small --user=scripted", ("telecom", "small", "scripted", 4, None, 1.0)),
        (f"{FILE} --trials=2 --max-tasks=5 --temperature=0.5", ("telecom", "test", "solo", 2, 5, 0.5)),
        (f"{FILE} --domain=airline --environment.domain=airline", ("airline", "test", "solo", 4, None, 1.0)),
    ],
)
def test_the_file_and_overrides_decide_and_options_only_where_they_are_given(words: str, wanted: tuple) -> None:
    assert settings(words) == wanted


@pytest.mark.parametrize(
    "words",
    [
        "--policy=gold --environment.concurrency=1",
        "--policy=gold --environment.episode_timeout_s=7200",
        "--policy=gold --rollout.over_sample=4 --environment.concurrency=2",
        "--policy=gold --rollout.stall_timeout_s=1",
    ],
)
def test_what_groups_need_to_be_trained_on_is_not_asked_of_an_evaluation(words: str) -> None:
    assert settings(words) == ("mock", "test", "solo", 1, None, 0.0)


@pytest.mark.parametrize(
    ("words", "one", "other"),
    [
        ("--policy gold --domain mock --environment.domain telecom", "--domain", "--environment.domain"),
        ("--policy gold --split test --environment.split train", "--split", "--environment.split"),
        ("--policy gold --evaluation.split test --environment.split train", "--evaluation.split", "--environment.split"),
        ("--policy gold --trials 2 --evaluation.episodes_per_task 3", "--trials", "--evaluation.episodes_per_task"),
        ("--policy gold --user solo --environment.user.kind llm", "--user", "--environment.user.kind"),
        ("--policy a/model --model.path another/model", "--policy", "--model.path"),
    ],
)
def test_options_and_overrides_that_contradict_each_other_are_refused(capfd, tmp_path, words, one, other) -> None:
    code, lines, err = evaluate(capfd, tmp_path, words)
    assert (code, lines) == (2, []) and f"{one} is " in err and f"{other} is " in err and err.count("\n") == 1


def test_telecom_is_played_where_the_file_says_telecom(capfd, tmp_path) -> None:
    code, (*episodes, totals), _ = evaluate(capfd, tmp_path, f"{TELECOM} --trials 1 --max-tasks 1")
    assert code == 0 and len(episodes) == 1 and totals["success_rate"] == 1.0
    assert played(tmp_path)[0]["task"]["domain"] == "telecom" and summary(tmp_path)["domains"] == ["telecom"]


def test_evaluations_are_told_apart_by_their_directories_and_their_summaries(capfd, tmp_path) -> None:
    for words in ("--policy gold --max-tasks 2", "--policy noop --max-tasks 2", "--policy gold --max-tasks 2"):
        evaluate(capfd, tmp_path, words)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3 and sum(name.startswith("gold-mock-test-solo-") for name in names) == 2
    found = json.loads((tmp_path / names[0] / "summary.json").read_text(), parse_constant=pytest.fail)
    assert found["complete"] is True and found["policy"] == "gold" and found["model"] is None
    assert found["success_rate"] == found["pass^1"] == 1.0 and found["seed"] == 0
    assert (found["episodes"], found["failed"], found["tasks"], found["trials"]) == (2, 0, 2, 1)
    assert found["config"]["environment"]["domain"] == "mock" and found["environment"] == "tau2"


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("runs/big/checkpoints/step_14/model", "big-step_14"),
        ("/data/runs/big/checkpoints/step_2/model", "big-step_2"),
        ("/models/Qwen3-8B", "Qwen3-8B"),
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("gold", "gold"),
    ],
)
def test_a_checkpoint_is_called_by_its_run_and_step(path: str, label: str) -> None:
    assert policy_label(path) == label


def test_a_name_of_ones_own_is_taken_once(capfd, tmp_path) -> None:
    assert evaluate(capfd, tmp_path, "--policy gold --max-tasks 1 --name mine")[0] == 0
    assert (tmp_path / "mine" / "summary.json").exists()
    code, lines, err = evaluate(capfd, tmp_path, "--policy gold --max-tasks 1 --name mine")
    assert (code, lines) == (2, []) and "--name is 'mine'" in err


def test_the_tasks_of_an_environment_are_listed_without_playing(capfd, tmp_path) -> None:
    code, lines, _ = evaluate(capfd, tmp_path, "--environment.name tests.envs.breaking --split fine+well --list")
    assert code == 0 and lines == [{"task_id": "fine"}, {"task_id": "well"}] and list(tmp_path.iterdir()) == []


def run(capfd, output: Path, *words: str) -> tuple[int, list[dict], str]:
    """As `evaluate`, where words have spaces in them."""
    code = main([*BREAKING.split(), *words, "--json", "--output", str(output), "--environment.processes", "1"])
    out, err = capfd.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def test_failed_episodes_are_told_with_their_place_and_are_exit_code_3(capfd, tmp_path) -> None:
    code, (*episodes, totals), err = run(
        capfd, tmp_path, "--split", "fine+score NaN+well+step dies", "--environment.concurrency", "1"
    )
    assert code == 3 and totals["failed"] == 2 and totals["success_rate"] == 0.5 and "Traceback (most" not in err
    assert "an episode of task score NaN failed: Breaking.score (tests/envs/breaking.py, line" in err
    assert "2 of 4 episodes failed and count as unsolved" in err and str(tmp_path) in err
    told = {episode["task_id"]: episode.get("failure") for episode in episodes}
    assert told["fine"] is told["well"] is None
    assert "finite number" in told["score NaN"] and "exit code 9" in told["step dies"]
    (log,) = tmp_path.glob("*/failures.log")
    assert "task score NaN of tests.envs.breaking" in log.read_text()


def test_an_environment_that_fails_nearly_always_is_given_up_soon_with_what_was_played(capfd, tmp_path) -> None:
    tasks = "fine+" + "+".join(f"step raises {number}" for number in range(200))
    code, (*episodes, totals), err = run(capfd, tmp_path, "--split", tasks, "--environment.concurrency", "8")
    assert code == 3 and len(episodes) < 150 and "given up: " in err and "KeyError: 'missing'" in err
    assert summary(tmp_path)["complete"] is False and summary(tmp_path)["episodes"] == len(episodes)


def test_an_environment_that_would_fail_every_episode_is_refused_before_anything_is_played(capfd, tmp_path) -> None:
    for tasks, told in (("score a float", "Breaking.score (tests/envs/breaking.py"), ("reset raises", "no such database")):
        code, lines, err = run(capfd, tmp_path, "--split", tasks)
        assert (code, lines) == (2, []) and told in err and err.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_gold_tells_where_there_is_no_demonstration(capfd, tmp_path) -> None:
    code, (*_, totals), err = run(capfd, tmp_path, "--split", "fine+demonstration empty")
    assert code == 0 and "1 of 2 tasks have no demonstration" in err and totals["ended"] == {"user_stop": 1, "max_turns": 1}


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_played(capfd, tmp_path) -> None:
    (tmp_path / "file").touch()
    code, lines, err = evaluate(capfd, tmp_path / "file", "--policy gold")
    assert (code, lines) == (2, []) and "--output" in err and "Traceback" not in err


def test_what_is_played_is_on_the_disk_when_the_command_is_killed(tmp_path) -> None:
    """The only task that is left hangs for a minute."""
    command = [sys.executable, "-m", "launch.evaluate", "--policy", "gold", "--environment.name", "tests.envs.breaking"]
    command += ["--split", "fine+well+step hangs", "--environment.step_timeout_s", "120", "--output", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while not list(tmp_path.glob("*/episodes.jsonl")) or len(played(tmp_path)) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    assert {episode["task"]["task_id"] for episode in played(tmp_path)} == {"fine", "well"}
    assert summary(tmp_path)["complete"] is False


def test_the_benchmark_of_environments_prints_one_record_a_concurrency(capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(["--domain", "mock", "--concurrency", "4,8", "--processes", "1", "--json"]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [record["concurrency"] for record in records] == [4, 8]
    for record in records:
        assert record["solved"] == 1.0
        assert all(record[name] > 0 for name in ("episodes_per_s", "tool_steps_per_s", "reset_ms", "score_ms"))


def test_a_model_leaves_nothing_but_its_results_on_standard_output_and_ends_cleanly(tmp_path, chat_model) -> None:
    command = [sys.executable, "-m", "launch.evaluate", "--policy", str(chat_model), "--max-tasks", "2", "--trials", "2"]
    command += ["--model.max_model_len", "1536", "--rollout.sampling.max_new_tokens", "8", "--rollout.max_episode_tokens"]
    command += ["16", "--rollout.engine.kv_cache_gib", "0.25", "--temperature", "1", "--output", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    *episodes, totals = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(episodes) == 4 and totals["episodes"] == 4 and {"pass^1", "pass^2"} <= totals.keys()
    assert "Exception ignored" not in done.stderr and "Traceback" not in done.stderr
    found = summary(tmp_path)
    assert (found["model"], found["temperature"], found["complete"]) == (str(chat_model), 1.0, True)


CALLING = "--agent tests.agents.calling"


def test_an_agent_is_evaluated_by_its_module_or_its_file_with_what_it_knows_to_be_right(capfd, tmp_path, chat_model) -> None:
    rates = {}
    for agent, policy in (("envs.examples.parcel_desk", "gold"), ("envs/examples/parcel_desk.py", "noop")):
        words = ["--agent", agent, "--policy", policy, "--max-tasks", "6", "--trials", "2", "--model.path", str(chat_model)]
        assert main([*words, "--json", "--output", str(tmp_path), "--environment.processes", "1"]) == 0
        *episodes, totals = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert len(episodes) == 12 and totals["ended"] == {"agent_stop": 12}
        rates[policy] = [totals[f"pass^{k}"] for k in (1, 2)]
    assert rates == {"gold": [1.0, 1.0], "noop": [0.0, 0.0]}
    found = {path.name.partition("-envs.examples.parcel_desk-test")[0]: path for path in tmp_path.iterdir()}
    assert sorted(found) == ["gold", "noop"]
    first, *_ = [json.loads(line) for line in (found["gold"] / "episodes.jsonl").read_text().splitlines()]
    assert [line["content"] for line in first["transcript"] if line["role"] == "assistant"][-1].startswith("Good news: ")
    told = json.loads((found["gold"] / "summary.json").read_text())
    assert told["complete"] and told["environment"] == "envs.examples.parcel_desk" and told["success_rate"] == 1.0


def test_what_an_agent_raises_is_told_and_is_no_failure_of_the_evaluation(capfd, tmp_path, chat_model) -> None:
    words = [*CALLING.split(), "--split", "raises+talks", "--policy", "noop", "--model.path", str(chat_model)]
    code = main([*words, "--json", "--output", str(tmp_path), "--environment.processes", "1"])
    out, err = capfd.readouterr()
    *episodes, totals = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and totals["failed"] == 0 and totals["ended"] == {"agent_error": 1, "agent_stop": 1}
    assert "the agent raised in 1 of 2 episodes" in err and "no such order" in err and "calling.py" in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--agent tests.envs.breaking --policy noop", "--agent is 'tests.envs.breaking', which is an environment"),
        ("--agent tau2 --policy gold", "--agent is 'tau2', which is an environment"),
        (f"{CALLING} --policy noop --domain airline", "--domain is 'airline', but 'tests.agents.calling' is an agent"),
        (f"{CALLING} --policy noop --user solo", "--user is 'solo'"),
        (f"{CALLING} --policy gold", "has no function gold(task)"),
        (f"{CALLING} --policy gold --environment.name tau2", "--environment.name is 'tau2'"),
        ("--agent no/such/agent.py --policy gold", "'no.such.agent'"),
        ("--agent /etc/agent.py --policy gold", "outside of the folder where the command is started"),
        (f"{CALLING} --policy noop", "environment.processes is 0"),
    ],
)
def test_what_cannot_be_evaluated_of_an_agent_is_one_paragraph(capfd, tmp_path, words, named) -> None:
    code, lines, err = evaluate(capfd, tmp_path, words)
    assert (code, lines) == (2, []) and named in err and err.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_model_plays_an_agent_by_the_same_door_as_in_training(tmp_path, chat_model) -> None:
    command = [sys.executable, "-m", "launch.evaluate", "--policy", str(chat_model), *CALLING.split(), "--split", "talks+uses_tools"]
    command += ["--model.max_model_len", "512", "--rollout.engine.kv_cache_gib", "0.25", "--trials", "2", "--temperature", "1"]
    command += ["--environment.processes", "1", "--output", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    *episodes, totals = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(episodes) == 4 and totals["ended"] == {"agent_stop": 4} and totals["reward_mean"] > 0
    found = summary(tmp_path)
    assert (found["model"], found["temperature"], found["complete"]) == (str(chat_model), 1.0, True)
    assert all(len(episode["turns"]) == 3 for episode in played(tmp_path))


def test_the_agent_of_the_guide_is_evaluated_as_it_stands_there(capfd, tmp_path, chat_model, monkeypatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    agent, gold = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "my_agent.py").write_text(f"{agent}\n\n{gold}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--agent", "my_agent.py", "--policy", "gold", "--model.path", str(chat_model), "--environment.processes", "1"]
    assert main([*words, "--json", "--output", str(tmp_path / "evaluations")]) == 0
    *episodes, totals = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(episodes) == 20 and totals["success_rate"] == 1.0
