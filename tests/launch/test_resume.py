"""`launch.train --resume`, up to where Ray would start: one command line for whatever is there."""

import shutil
from pathlib import Path

import pytest
import yaml

from envs.registry import list_tasks
from launch import train
from rl_system.algorithms.task_sampler import TaskSampler
from rl_system.config.load import load_config
from rl_system.config.run import RunConfig
from rl_system.run_lock import only_process_in
from rl_system.tracking.json_lines import read_lines
from rl_system.tracking.tracker import FINISHED, Tracker
from rl_system.training.identity import contents
from tests.models import save_tiny_chat_model
from tests.rl_system.lives import leave_checkpoint, leave_steps

CONFIG = Path(__file__).parents[2] / "configs" / "tau2_mock_cpu.yaml"


@pytest.fixture
def words(tmp_path, chat_model) -> list[str]:
    overrides = {
        "model.path": chat_model,
        "output": tmp_path,
        "steps": 4,
        "warm_start.enabled": "false",
        "environment.shuffle_window": "null",
        "tracking.wandb": "disabled",
        "tracking.progress": "false",
    }
    return [word for key, value in overrides.items() for word in (f"--{key}", str(value))]


@pytest.fixture
def command(words, monkeypatch, capsys):
    """Runs `launch.train` with more words; returns exit code, standard output and error."""

    def too_late(*_, **__):
        raise AssertionError("Ray was started")

    monkeypatch.setattr("ray.init", too_late)

    def start(*more: str) -> tuple[int, str, str]:
        code = train.main(["--config", str(CONFIG), *words, *more])
        return code, *capsys.readouterr()

    return start


@pytest.fixture
def left(words):
    """A run that was killed after three steps, with a checkpoint after the second."""
    config = load_config(CONFIG, words)
    leave_steps(config, 3, contents=contents(config))
    save(config, 2)
    return config


def save(config: RunConfig, step: int, started_from: str | None = None) -> None:
    model, tasks = config.model.path, list_tasks(config.environment, config.environment.split)
    leave_checkpoint(
        config,
        step,
        contents=contents(config),
        sampler=TaskSampler.of(tasks, config.seed, config.environment).state(),
        learner={"started_from": started_from or model},
        model=Path(model),
    )


def comments(out: str) -> list[str]:
    return [line.removeprefix("# ") for line in out.splitlines() if line.startswith("# ")]


def test_a_resume_of_what_never_ran_is_no_mistake(command):
    code, out, err = command("--resume", "--dry-run")
    assert (code, err) == (0, "") and not any("goes on" in line for line in comments(out))


def test_a_dry_run_says_where_a_resume_would_go_on_and_what_would_be_otherwise(command, left):
    code, out, err = command("--resume", "--dry-run", "--optimizer.learning_rate", "1e-4")
    assert (code, err) == (0, "")
    assert comments(out)[:2] == [
        "the run goes on from step 2, 1 step(s) after it are done again",
        "optimizer.learning_rate is 0.0001 from here on, it was 3e-05",
    ]
    assert yaml.safe_load(out)["optimizer"]["learning_rate"] == 1e-4


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["--seed", "1"], "seed is 1, but the run has 0"),
        (["--environment.shuffle_window", "4"], "environment.shuffle_window is 4, but the run has None"),
        (["--environment.split", "test"], "environment.split is 'test', but the run has 'train'"),
        (["--rollout.sampling.temperature", "0.5"], "rollout.sampling.temperature is 0.5, but the run has 1.0"),
    ],
)
def test_what_may_not_change_is_refused_by_name_before_anything_starts(command, left, overrides, named, dry):
    before = {path: path.read_bytes() for path in left.directory.rglob("*") if path.is_file()}
    code, out, err = command("--resume", *dry, *overrides)
    assert (code, out) == (2, "") and named in err and err.count("\n") == 1
    assert {path: path.read_bytes() for path in left.directory.rglob("*") if path.is_file()} == before


def test_another_model_is_refused_and_the_same_one_elsewhere_is_not(command, left, tmp_path, chat_model):
    other = save_tiny_chat_model(tmp_path / "other", seed=1)
    code, _, err = command("--resume", "--dry-run", "--model.path", str(other))
    assert code == 2 and f"model.path is '{other}', but the run has '{chat_model}'" in err
    copy = shutil.copytree(chat_model, tmp_path / "copy")
    code, out, err = command("--resume", "--dry-run", "--model.path", str(copy))
    assert (code, err) == (0, "")
    assert f"model.path is '{copy}' from here on, it was '{chat_model}'" in comments(out)


def test_a_run_that_is_complete_ends_in_a_sentence_and_not_in_an_error(command, left):
    save(left, 4)
    with Tracker(left, resume_step=3) as tracker:
        tracker.step(4, {"reward/mean": 0.5})
        tracker.event(FINISHED, steps=4)
    for _ in range(2):
        code, out, err = command("--resume")
        assert (code, err) == (0, "") and out.startswith(f"complete: {left.directory} has done all 4 steps")
    assert (left.directory / "report.html").exists() and not (left.directory / "run.lock").exists()
    assert [line["step"] for line in read_lines(left.directory / "metrics.jsonl")] == [1, 2, 3, 4]
    code, out, _ = command("--resume", "--dry-run")
    assert code == 0 and comments(out) == ["the run is complete already"]


def test_a_run_whose_model_was_moved_begins_its_later_workers_from_where_it_is_now(left, chat_model):
    save(left, 3, started_from="/no/longer/there")
    checked = train.prepare(left, resume=True, dry_run=False)
    assert checked.resumed.started_from == chat_model.resolve()


def test_a_second_process_for_a_run_that_goes_on_is_refused(command, left):
    with only_process_in(left.directory):
        code, _, err = command("--resume")
    assert code == 2 and "in use by a run that goes on" in err
