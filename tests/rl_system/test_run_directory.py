"""A run's directory between two of its lives: nothing of undone work stays, and one process at a time writes there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rl_system.config.load import build_config, load_config
from rl_system.errors import UserError
from rl_system.run_directory import announce, make_ready
from rl_system.run_lock import LOCK, only_process_in
from rl_system.start import find_start
from rl_system.tracking.json_lines import read_lines
from rl_system.tracking.tracker import Tracker
from tests.rl_system.lives import CONTENTS, leave_checkpoint, leave_steps


@pytest.fixture
def configure(tmp_path):
    def build(*overrides: str):
        values = {"name": "run", "output": str(tmp_path), "steps": 8, "tracking": {"wandb": "disabled", "progress": False}}
        return build_config(values, overrides)

    return build


@pytest.fixture
def config(configure):
    return configure()


def files(directory: Path) -> set[str]:
    kept = ("metrics.jsonl", "events.jsonl", "undone.jsonl", "config.yaml")
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file() and path.name not in kept}


def leave(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("{}\n")


OF_GROUPS = [f"episodes/group_{group:06}.jsonl" for group in range(8)]


def test_after_a_resume_nothing_is_there_of_steps_and_groups_that_are_done_again(config):
    leave_steps(config, 4)
    leave_checkpoint(config, 2, next_group_id=6, running=[3, 5])
    by_step = [f"{kind.format(step)}" for kind in ("episodes/evaluation_step_{}.jsonl", "trees/run_step_{}.json",
                                                    "batches/step_{:06}.npz") for step in (1, 2, 3, 4)]  # fmt: skip
    leave(config.directory, *OF_GROUPS, *by_step, "episodes/.group_000007.jsonl.new", "batches/new_step_000003.npz")
    leave(config.directory, "weights/version_9/model.safetensors", "notes.txt", "checkpoints/step_3.incomplete-1-ab/x")
    checkpoint = {name for name in files(config.directory) if name.startswith("checkpoints/step_2/")}
    make_ready(config, find_start(config, True, CONTENTS))
    kept = [OF_GROUPS[group] for group in (0, 1, 2, 4)] + [name for name in by_step if "_1." in name or "_2." in name
                                                           or "1.npz" in name or "2.npz" in name]  # fmt: skip
    assert files(config.directory) == {*kept, "notes.txt", *checkpoint}


def test_a_run_that_starts_from_nothing_again_finds_no_rollout_of_its_earlier_life(config):
    leave_steps(config, 4)
    leave(config.directory, *OF_GROUPS, "episodes/evaluation_step_0.jsonl", "trees/run_step_1.json", "notes.txt")
    make_ready(config, find_start(config, True, CONTENTS))
    assert files(config.directory) == {"notes.txt"}


def test_config_yaml_is_what_the_run_is_configured_with_now_and_what_it_was_stays_beside_it(configure):
    config, now = configure(), configure("--optimizer.learning_rate", "3e-4")
    leave_steps(config, 4)
    leave_checkpoint(config, 2)
    start = find_start(now, True, CONTENTS)
    make_ready(now, start)
    assert load_config(config.directory / "config.yaml") == now
    assert load_config(config.directory / "config_until_step_2.yaml") == config
    with Tracker(now, resume_step=start.step) as tracker:
        announce(tracker, start, {}, CONTENTS)
    changed = [event for event in read_lines(config.directory / "events.jsonl") if event["event"] == "config_changed"]
    assert changed[0]["changes"] == [{"key": "optimizer.learning_rate", "old": 1e-5, "new": 3e-4}]
    make_ready(config, find_start(config, True, CONTENTS))
    assert sorted(path.name for path in config.directory.glob("config*")) == ["config.yaml", "config_until_step_2.yaml"]


def test_a_damaged_checkpoint_is_put_aside_and_the_event_names_it_and_where_the_run_goes_on(config):
    leave_steps(config, 4)
    sound, damaged = leave_checkpoint(config, 2), leave_checkpoint(config, 4)
    (damaged / "state" / "groups.npz").unlink()
    start = find_start(config, True, CONTENTS)
    aside = make_ready(config, start)
    with Tracker(config, resume_step=start.step) as tracker:
        announce(tracker, start, aside, CONTENTS)
    (event,) = [each for each in read_lines(config.directory / "events.jsonl") if each["event"] == "checkpoint_damaged"]
    moved = config.directory / "checkpoints" / "damaged_step_4"
    assert (event["path"], event["moved_to"], event["went_on_from"]) == (str(damaged), str(moved), str(sound))
    assert "groups.npz is missing" in event["reason"] and moved.is_dir() and not damaged.exists()
    assert find_start(config, True, CONTENTS).damaged == {}


def test_every_life_of_a_run_is_told_by_an_event_and_what_it_took_back_is_kept(config):
    for steps in (3, 2):
        start = find_start(config, True, CONTENTS)
        make_ready(config, start)
        with Tracker(config, resume_step=start.step if start.again else None) as tracker:
            announce(tracker, start, {}, CONTENTS)
            for step in range(1, steps + 1):
                tracker.step(step, {})
    kinds = [(event["event"], event.get("undone_steps")) for event in read_lines(config.directory / "events.jsonl")]
    assert kinds == [("resume", 3), ("start", None)]
    undone = read_lines(config.directory / "undone.jsonl")
    assert [line["line"]["step"] for line in undone if line["file"] == "metrics.jsonl"] == [1, 2, 3]
    assert [line["line"]["event"] for line in undone if line["file"] == "events.jsonl"] == ["start"]
    assert {line["kept_steps"] for line in undone} == {0}


HOLDER = """
import sys, time
from pathlib import Path
from rl_system.run_lock import only_process_in
with only_process_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_processes_are_never_in_the_directory_of_a_run_and_a_killed_one_is_not_there(tmp_path):
    directory = tmp_path / "runs" / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by a run that goes on .process {holder.pid} on ") as refusal:
            with only_process_in(directory):
                raise AssertionError
        assert "\n" not in str(refusal.value)
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with only_process_in(directory):
        assert (directory / LOCK).exists()
        (directory / "config.yaml").write_text(yaml.safe_dump({}))
    assert [path.name for path in directory.iterdir()] == ["config.yaml"]


def test_a_start_that_fails_leaves_no_directory(tmp_path):
    with pytest.raises(ZeroDivisionError), only_process_in(tmp_path / "run"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written: Not a directory"), only_process_in(tmp_path / "file" / "run"):
        raise AssertionError
