"""In which order the main loop trains, saves and evaluates, each once, also where it begins after a kill."""

import asyncio

import pytest

from actors.run import train
from rl_system.config.load import build_config


class Recorder:
    """A run of which every verb is written down; a step is one of `update`."""

    def __init__(self, config, step: int = 0, evaluated: bool = False) -> None:
        self.config, self.step, self.evaluated, self.verbs = config, step, evaluated, []

    def __getattr__(self, verb: str):
        async def carry_out(*_) -> None:
            if verb == "update":
                self.step += 1
            if verb in ("start_rollouts", "stop_rollouts", "checkpoint", "evaluate"):
                self.verbs.append(f"{verb} {self.step}")

        return carry_out

    def finish(self) -> None:
        self.verbs.append(f"finish {self.step}")


def verbs(step: int = 0, evaluated: bool = False, **keys: object) -> list[str]:
    words = [word for key, value in keys.items() for word in (f"--{key.replace('__', '.')}", str(value).lower())]
    run = Recorder(build_config({"name": "run", "steps": 4}, words), step, evaluated)
    asyncio.run(train(run))
    return run.verbs


def test_every_step_that_is_saved_or_evaluated_is_so_once_and_saved_first():
    assert verbs(checkpoint__every=2, evaluation__every=2) == [
        "evaluate 0", "start_rollouts 0", "checkpoint 2", "evaluate 2", "stop_rollouts 4", "checkpoint 4", "evaluate 4", "finish 4",
    ]  # fmt: skip


def test_the_last_step_is_saved_before_anything_else_can_go_wrong():
    assert verbs(checkpoint__every=0, evaluation__before=False) == [
        "start_rollouts 0", "stop_rollouts 4", "checkpoint 4", "evaluate 4", "finish 4",
    ]  # fmt: skip


@pytest.mark.parametrize(("evaluated", "first"), [(False, ["evaluate 2"]), (True, [])])
def test_an_evaluation_that_a_kill_kept_from_happening_after_its_checkpoint_is_made_up_for(evaluated, first):
    assert verbs(2, evaluated, checkpoint__every=2, evaluation__every=2)[: len(first) + 1] == [*first, "start_rollouts 2"]


def test_a_run_whose_last_evaluation_alone_is_missing_samples_nothing_for_it():
    assert verbs(4, False, checkpoint__every=2) == ["evaluate 4", "finish 4"]
    assert verbs(4, True, checkpoint__every=2) == ["finish 4"]
