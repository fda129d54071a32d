"""What a person gets wrong is one paragraph and exit code 2, before Ray or vLLM start."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from actors.engine.run_memory import run_directory
from launch import train

CONFIG = Path(__file__).parents[2] / "configs" / "tau2_mock_cpu.yaml"


@pytest.fixture
def refusal(capsys, tmp_path, chat_model, monkeypatch):
    """Starts the default run with a tiny model and some overrides, and returns the message that it ends with."""

    def too_late(*_, **__):
        raise AssertionError("Ray was started before the mistake was found")

    monkeypatch.setattr("ray.init", too_late)

    def start(*overrides: str) -> str:
        base = ["--config", str(CONFIG), "--model.path", str(chat_model), "--output", str(tmp_path)]
        code = train.main([*base, "--warm_start.enabled", "false", *overrides])
        captured = capsys.readouterr()
        assert code == 2, captured
        assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and "Traceback" not in captured.err
        return captured.err

    return start


def test_a_wrong_model_path_is_named(refusal):
    text = refusal("--model.path", "/no/such/model")
    assert "model.path" in text and "/no/such/model" in text


def test_a_directory_that_holds_no_model_is_named(refusal, tmp_path):
    assert str(tmp_path) in refusal("--model.path", str(tmp_path))


def test_an_unknown_domain_is_refused_with_the_domains_there_are(refusal):
    text = refusal("--environment.domain", "hotel")
    assert "environment.domain" in text and "'hotel'" in text and "retail" in text


def test_an_unknown_task_split_is_refused_with_the_splits_there_are(refusal):
    text = refusal("--environment.split", "validation")
    assert "'validation'" in text and "train" in text and "test" in text


def test_an_unknown_evaluation_split_is_refused_too(refusal):
    assert "'tset'" in refusal("--evaluation.split", "tset")


def test_a_misspelt_key_is_refused_with_the_one_that_was_meant(refusal):
    text = refusal("--rollout.groupsize", "4")
    assert "rollout.groupsize" in text and "did you mean rollout.group_size?" in text


def test_a_group_of_one_is_refused_with_group_normalisation(refusal):
    assert "rollout.group_size is 1" in refusal("--rollout.group_size", "1")


def test_a_context_shorter_than_a_prompt_is_refused_with_the_length_that_is_needed(refusal):
    text = refusal("--model.max_model_len", "256")
    assert "model.max_model_len is 256" in text and "use at least" in text


def test_a_context_longer_than_the_models_is_refused(refusal):
    assert "model.max_model_len is 4096" in refusal("--model.max_model_len", "4096")


def test_too_little_memory_is_told_before_anything_starts(refusal):
    text = refusal("--rollout.engine.kv_cache_gib", "100000")
    assert "GiB" in text and "rollout.engine.kv_cache_gib 100000" in text


def test_a_model_that_the_executor_cannot_run_is_refused(refusal, tmp_path, chat_model):
    windowed = tmp_path / "windowed"
    shutil.copytree(chat_model, windowed)
    config = json.loads((windowed / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 128}
    (windowed / "config.json").write_text(json.dumps(config))
    assert "sliding window" in refusal("--model.path", str(windowed))


def test_a_fresh_run_in_the_directory_of_another_is_refused(refusal, tmp_path):
    (tmp_path / "tau2_mock_cpu").mkdir()
    (tmp_path / "tau2_mock_cpu" / "metrics.jsonl").write_text("{}\n")
    assert "--resume" in refusal()


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ("score a float", "'score a float': Breaking.score (tests/envs/breaking.py, line"),
        ("reset raises", "reset raised RuntimeError: no such database (tests/envs/breaking.py, line"),
        ("step dies", "the worker process died during step (exit code 9)"),
        ("step hangs", "step took longer than 2 s (tests/envs/breaking.py, line"),
        ("tools no schema", "are no JSON schema"),
        ("step raises 1+step raises 2+step raises 3+fine", "so do the 2 others that were tried"),
        ("junk raises", "an agent that calls look with wrong arguments is to be answered by a message"),
        ("", "has no task in split ''"),
    ],
)
def test_an_environment_that_would_fail_every_episode_is_refused_with_its_place(refusal, tasks, told):
    text = refusal(
        "--environment.name", "tests.envs.breaking", f"--environment.split={json.dumps(tasks)}", "--evaluation.before",
        "false", "--evaluation.after", "false", "--environment.step_timeout_s", "2",
    )  # fmt: skip
    assert told in text and ("environment.name" in text or not tasks)


def test_single_tasks_that_fail_are_told_and_keep_no_run_from_starting(capsys, tmp_path, chat_model):
    arguments = ["--config", str(CONFIG), "--model.path", str(chat_model), "--output", str(tmp_path), "--dry-run"]
    arguments += ["--environment.name", "tests.envs.breaking", "--environment.split", "step raises+fine+reset raises"]
    arguments += ["--evaluation.before", "false", "--evaluation.after", "false", "--warm_start.enabled", "false"]
    assert train.main(arguments) == 0
    out = capsys.readouterr().out
    assert "# warning: task step raises failed when it was tried: step raised KeyError: 'missing' (tests/envs/" in out
    assert "# warning: 1 of 3 tasks could not be opened; the first is reset raises: reset raised RuntimeError" in out


def test_an_objective_that_does_not_exist_is_refused_with_those_that_do(refusal):
    text = refusal("--algorithm.objective", "ppo2")
    assert "'ppo2'" in text and "decoupled_ppo" in text


def test_moving_accelerators_by_itself_is_refused_as_long_as_a_run_cannot(refusal):
    assert "allocation.mode" in refusal("--allocation.mode", "auto")


def test_a_port_that_is_taken_is_told():
    import socket

    from launch.local_ray import LocalRay
    from rl_system.errors import UserError

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--dashboard-port {port} is in use"):
            LocalRay(slots=2, dashboard_port=port)


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
@pytest.mark.parametrize("output", ["/etc/passwd", "/proc/x"])
def test_an_output_that_cannot_be_written_is_refused_by_a_dry_run_too(refusal, output, flags):
    text = refusal("--output", output, *flags)
    assert f"output: {output}/tau2_mock_cpu cannot be written" in text


def test_a_file_with_the_name_of_the_run_is_refused(refusal, tmp_path):
    (tmp_path / "tau2_mock_cpu").write_text("mine")
    assert "tau2_mock_cpu cannot be written (it is no directory)" in refusal("--dry-run")


def test_a_disk_without_room_for_the_checkpoints_is_told(refusal, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    text = refusal("--dry-run")
    assert "checkpoint.keep" in text and "1.00 MiB free" in text


def test_as_a_command_a_mistake_is_one_line_on_standard_error_and_exit_code_2(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: x\nrolout: {}\n")
    done = subprocess.run(
        [sys.executable, "-m", "launch.train", "--config", str(broken)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "rolout" in done.stderr


def test_a_dry_run_prints_a_configuration_that_loads_to_itself_and_the_placement(capsys, tmp_path, chat_model):
    import yaml

    arguments = ["--config", str(CONFIG), "--model.path", str(chat_model), "--output", str(tmp_path), "--dry-run"]
    assert train.main([*arguments, "--warm_start.enabled", "false", "--rollout.group_size", "5"]) == 0
    out = capsys.readouterr().out
    printed = tmp_path / "printed.yaml"
    printed.write_text(out)
    assert yaml.safe_load(out)["rollout"]["group_size"] == 5
    assert "rollout worker 0" in out and "trainer 0" in out
    assert train.main(["--config", str(printed), "--dry-run"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == yaml.safe_load(out)
    assert list(tmp_path.glob("tau2_mock_cpu")) == []


def test_a_dry_run_leaves_nothing_behind(tmp_path, chat_model):
    home, output, temporary = (tmp_path / name for name in ("home", "out", "tmp"))
    home.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-m", "launch.train", "--config", str(CONFIG), "--dry-run", "--model.path", str(chat_model)]
    done = subprocess.run(
        [*command, "--output", str(output / "deep"), "--warm_start.enabled", "true"],
        env=os.environ | {"HOME": str(home), "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(home / ".cache")},
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    # Libraries keep caches and settings of their own in hidden folders of the home directory.
    assert {path for path in left if not path.startswith("home/.")} == {"home", "tmp"}
    assert not [path for path in left if "rl-system" in path]
    assert not run_directory(output / "deep" / "tau2_mock_cpu").exists()
