"""Where a run starts, by what earlier lives of it left: always somewhere, with one command line."""

from pathlib import Path

import pytest

from rl_system.config.load import build_config
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.start import Start, find_start
from rl_system.tracking.tracker import FINISHED, Tracker
from tests.rl_system.lives import CONTENTS, leave_checkpoint, leave_steps


@pytest.fixture
def configure(tmp_path):
    def build(*overrides: str) -> RunConfig:
        values = {"name": "run", "output": str(tmp_path), "steps": 8, "tracking": {"wandb": "disabled", "progress": False}}
        return build_config(values, overrides)

    return build


@pytest.fixture
def config(configure) -> RunConfig:
    return configure()


def start(config: RunConfig, resume: bool = True, contents=CONTENTS) -> Start:
    return find_start(config, resume, contents)


def finish(config: RunConfig, step: int) -> None:
    with Tracker(config, resume_step=step) as tracker:
        tracker.event(FINISHED, steps=step)


def test_a_resume_of_what_never_began_begins(config):
    assert start(config) == Start() and start(config, resume=False) == Start()
    config.directory.mkdir(parents=True)
    assert start(config) == Start()


def test_a_run_that_was_killed_before_its_first_checkpoint_is_done_again_from_the_beginning(config):
    leave_steps(config, 3)
    found = start(config)
    assert (found.state, found.again, found.undone, found.complete) == (None, True, 3, False)
    assert "from the beginning" in found.describe()[0] and "3 step(s)" in found.describe()[0]


@pytest.mark.parametrize("left", ["", "name: ru", "name: [", "- 1\n", "\x00\xff"])
def test_a_run_that_was_killed_while_it_wrote_its_configuration_begins(config, left):
    config.directory.mkdir(parents=True)
    (config.directory / "config.yaml").write_bytes(left.encode("latin-1"))
    assert start(config).state is None
    assert start(config, resume=False) == Start()
    (config.directory / "metrics.jsonl").write_text('{"step": 1}\n')
    assert start(config).undone == 1


def test_a_run_goes_on_from_its_newest_checkpoint_and_does_what_came_after_again(config):
    leave_steps(config, 6)
    leave_checkpoint(config, 2)
    newest = leave_checkpoint(config, 4)
    found = start(config)
    assert (found.step, found.state.path, found.undone, found.damaged) == (4, newest, 2, {})
    assert found.state.started_from == Path("/models/first")


def test_behind_a_damaged_checkpoint_a_run_goes_on_from_the_one_before_and_says_so(config):
    leave_steps(config, 6)
    leave_checkpoint(config, 2)
    damaged = leave_checkpoint(config, 4)
    (damaged / "model" / "parameters.npy").write_bytes(b"torn")
    found = start(config)
    assert (found.step, found.undone, list(found.damaged)) == (2, 4, [damaged])
    assert "step_4 is damaged (model/parameters.npy has 4 bytes" in found.describe()[0]


def test_a_run_without_resume_never_goes_over_another(config):
    leave_steps(config, 1)
    with pytest.raises(UserError, match="holds a run already; add --resume"):
        start(config, resume=False)


def test_a_run_that_did_no_step_may_be_begun_anew_also_with_another_configuration(configure):
    leave_steps(configure(), 0)
    assert start(configure("--seed", "1"), resume=False) == Start()
    assert start(configure("--seed", "1")) == Start(again=True)


def test_a_complete_run_is_no_mistake_and_more_steps_go_on(configure):
    config = configure()
    leave_steps(config, 8)
    leave_checkpoint(config, 8)
    assert not start(config).complete  # its last evaluation may be missing
    finish(config, 8)
    assert start(config).complete and start(configure("--steps", "5")).complete
    more = start(configure("--steps", "9"))
    assert (more.complete, more.step, more.undone) == (False, 8, 0)
    assert [(change.key, change.old, change.new) for change in more.changes] == [("steps", 8, 9)]


def test_a_run_that_ended_before_and_is_made_longer_is_complete_only_at_its_new_end(configure):
    config = configure("--steps", "10")
    leave_steps(config, 10)
    leave_checkpoint(config, 8)
    finish(configure(), 8)
    leave_checkpoint(config, 10)
    assert not start(config).complete
    finish(config, 10)
    assert start(config).complete


@pytest.mark.parametrize("checkpoint", [True, False])
def test_what_may_not_change_is_refused_with_a_checkpoint_and_without_one(configure, checkpoint):
    config = configure()
    leave_steps(config, 3)
    if checkpoint:
        leave_checkpoint(config, 2)
    with pytest.raises(UserError, match="--resume: seed is 1, but the run has 0.*environment.shuffle_window is 4"):
        start(configure("--seed", "1", "--environment.shuffle_window", "4"))
    with pytest.raises(UserError, match="model.path 'smollm2-135m-instruct' holds something else"):
        start(config, contents=CONTENTS | {"model.path": "another"})
    moved = start(configure("--model.path", "/moved"))
    assert [change.key for change in moved.changes] == ["model.path"]
    if checkpoint:
        with pytest.raises(UserError, match=r"--name and --model\.path .*step_2/model"):
            start(configure("--seed", "1"))


def test_what_counts_is_the_configuration_of_the_checkpoint_not_of_a_later_life_that_saved_nothing(configure):
    leave_checkpoint(configure(), 2)
    leave_steps(configure("--optimizer.learning_rate", "3e-4"), 4)
    (change,) = start(configure("--optimizer.learning_rate", "3e-4")).changes
    assert (change.key, change.old, change.new) == ("optimizer.learning_rate", 1e-5, 3e-4)
    assert start(configure()).changes == ()


def test_a_run_directory_that_was_moved_goes_on(configure, tmp_path):
    config = configure()
    leave_steps(config, 3)
    leave_checkpoint(config, 2)
    config.directory.parent.joinpath("elsewhere").mkdir()
    config.directory.rename(tmp_path / "elsewhere" / "run")
    found = start(configure("--output", str(tmp_path / "elsewhere")))
    assert found.step == 2 and [change.key for change in found.changes] == ["output"]


@pytest.mark.parametrize(("saved", "configured"), [("gae", "grpo"), ("grpo", "gae")])
def test_resuming_with_or_without_a_critic_against_the_checkpoint_is_refused_before_anything_starts(
    configure, saved, configured
):
    config = configure("--algorithm.advantage", saved)
    leave_checkpoint(config, 2, learner={"critic": {}} if saved == "gae" else {})
    assert start(config).step == 2
    with pytest.raises(UserError, match=r"algorithm\.advantage is .*critic"):
        start(configure("--algorithm.advantage", configured))


def test_a_checkpoint_that_says_nothing_of_its_configuration_is_compared_with_what_lies_beside_it(configure):
    config = configure()
    leave_steps(config, 3)
    path = leave_checkpoint(config, 2)
    manifest = path / "checkpoint.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"configured"', '"of another release"'))
    with pytest.raises(UserError, match="seed is 1, but the run has 0"):
        start(configure("--seed", "1"))
