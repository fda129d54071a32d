"""An environment that fails on demand: its task ids say how. Used by dotted name, as a user's own environment would
be. What it does `_once` it does for the first episode alone; `environment.domain` is a folder to remember that in."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from envs.protocol import Action, Observation, Score
from rl_system.config.environment import EnvironmentConfig
from rl_system.records import Ending, Task

BEHAVIOURS = ("well", "hangs", "hangs_in_reset", "raises", "raises_in_reset", "raises_in_score", "dies", "slow")
ONCE = "_once"
ODD_TEXT = "half \ud835, whole \ud835\udc00, \x00\x1b[31m\u202e <|im_end|>"
"""Half a surrogate pair, both halves of one, what no terminal should be shown, and a forged end of a turn."""


class Misbehaving:
    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour
        self.messages: list[dict[str, Any]] = []
        self.ended: Ending | None = None

    def reset(self) -> None:
        self._misbehave("_in_reset")
        self.messages = [{"role": "user", "content": f"pid {os.getpid()}"}]

    def tools(self) -> list[dict[str, Any]]:
        return []

    def observe(self) -> Observation:
        messages, self.messages = self.messages, []
        return Observation(messages, self.ended)

    def step(self, action: Action) -> None:
        if self.behaviour == "slow":
            time.sleep(0.2)
        if self.behaviour == "very_slow":
            time.sleep(2.0)
        self._misbehave("")
        self.messages = [{"role": "user", "content": f"You said: {action.text}"}]
        if self.behaviour == "odd_text":
            self.messages = [{"role": "tool", "content": ODD_TEXT}, {"role": "user", "content": ODD_TEXT, ODD_TEXT: ODD_TEXT}]
        if self.behaviour == "huge":
            self.messages = [{"role": "tool", "content": "x" * 20_000_000}]
        if self.behaviour == "huge_user":
            self.messages = [{"role": "user", "content": "x" * 20_000_000}]
        if action.text == "bye":
            self.ended = Ending.USER_STOP

    def score(self, ended: Ending) -> Score:
        self._misbehave("_in_score")
        return Score(1.0)

    def demonstration(self) -> list[Action]:
        return [Action(text="hello"), Action(text="bye")]

    def close(self) -> None:
        pass

    def _misbehave(self, where: str) -> None:
        if self.behaviour == f"hangs{where}":
            while True:
                time.sleep(0.01)
        if self.behaviour == f"raises{where}":
            raise ValueError("broken on purpose")
        if self.behaviour == f"dies{where}":
            os._exit(9)


def list_tasks(config: EnvironmentConfig, split: str) -> list[Task]:
    """All of them in `train`; any other split names its own, joined by `+`."""
    names = BEHAVIOURS if split == "train" else split.split("+")
    return [Task(__name__, "none", behaviour, split) for behaviour in names]


def make_environment(config: EnvironmentConfig, task: Task) -> Misbehaving:
    behaviour = task.task_id
    if behaviour.endswith(ONCE):
        try:
            (Path(config.domain) / behaviour).touch(exist_ok=False)
            behaviour = behaviour.removesuffix(ONCE)
        except FileExistsError:
            behaviour = "well"
    return Misbehaving(behaviour)
