"""An environment that breaks its contract as its task id says: the kinds of mistakes that a person makes in a first one."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from typing import Any

from envs.protocol import Action, Observation, Score, ToolCall
from rl_system.config.environment import EnvironmentConfig
from rl_system.records import Ending, Task

ASK = {"role": "user", "content": "Say bye."}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class Breaking:
    def __init__(self, how: str) -> None:
        self.how = how
        self.seen: Any = None

    def reset(self) -> None:
        if self.how == "reset raises":
            raise RuntimeError("no such\ndatabase")
        self.seen = Observation([ASK])

    def tools(self) -> Any:
        wrong = {
            "tools None": None,
            "tools a dict": {"name": "look"},
            "tools without form": [{"name": "look"}],
            "tools twice": [TOOL, TOOL],
            "tools no schema": [{"type": "function", "function": {"name": "look", "parameters": {"type": "integr"}}}],
            "tools functions": [print],
        }
        return wrong.get(self.how, [TOOL])

    def observe(self) -> Any:
        wrong = {
            "observe None": None,
            "observe a str": "Say bye.",
            "observe no message": Observation(),
            "observe messages of text": Observation(["Say bye."]),
            "observe message without content": Observation([{"role": "user"}]),
            "observe content None": Observation([{"role": "user", "content": None}]),
            "observe role agent": Observation([{"role": "agent", "content": "Hi."}]),
            "observe a set": Observation([ASK | {"extra": {1, 2}}]),
            "observe ended True": Observation([ASK], ended=True),
            "observe ended failed": Observation([ASK], ended=Ending.FAILED),
            "observe errors None": Observation([ASK], errors=None),
        }
        return wrong.get(self.how, self.seen)

    def step(self, action: Action) -> None:
        if self.how.startswith("step raises"):
            return {}["missing"]
        if self.how == "junk raises" and any("no_such_argument" in call.arguments for call in action.tool_calls):
            raise TypeError("look() got an unexpected keyword argument")
        if self.how == "step exits":
            sys.exit("enough")
        if self.how == "step hangs":
            while True:
                time.sleep(0.01)
        if self.how == "step hangs in C":
            ctypes.PyDLL(None).sleep(3600)  # holds the interpreter: no thread of the process goes on
        if self.how == "step dies":
            os._exit(9)
        if self.how == "step crashes":
            ctypes.string_at(0)
        self.seen = Observation([ASK], Ending.USER_STOP if action.text == "bye" else None)
        return None

    def score(self, ended: Ending) -> Any:
        wrong = {
            "score a float": 1.0,
            "score None": None,
            "score NaN": Score(math.nan),
            "score text": Score("1.0"),
            "score part NaN": Score(1.0, {"speed": math.inf}),
            "score parts a list": Score(1.0, [1.0]),
            "score count a float": Score(1.0, {}, {"calls": 1.5}),
        }
        return wrong.get(self.how, Score(1.0))

    def demonstration(self) -> Any:
        wrong = {
            "demonstration None": None,
            "demonstration of text": ["bye"],
            "demonstration of a call": [ToolCall("look", {})],
            "demonstration with text None": [Action(text=None)],
            "demonstration with text as calls": [Action(tool_calls=(ToolCall("look", "now"),))],
            "demonstration empty": [],
        }
        return wrong.get(self.how, [Action(text="bye")])

    def close(self) -> None:
        pass


class Unfinished:
    """Has `score` without the parameter, and no `close`."""

    def reset(self) -> None:
        """Nothing to build."""

    def score(self) -> Score:
        return Score(1.0)


class WithoutParameter(Breaking):
    def score(self) -> Score:
        return Score(1.0)


def list_tasks(config: EnvironmentConfig, split: str) -> list[Task]:
    """A split names its own tasks, joined by `+`."""
    return [Task(__name__, "none", how, split) for how in split.split("+") if how]


def make_environment(config: EnvironmentConfig, task: Task) -> Any:
    if task.task_id == "make raises":
        raise KeyError(task.task_id)
    if task.task_id == "make None":
        return None
    kinds = {"make unfinished": Unfinished, "score without parameter": WithoutParameter}
    kind = kinds.get(task.task_id, Breaking)
    return kind() if kind is Unfinished else kind(task.task_id)
