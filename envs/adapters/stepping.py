"""What environments of the form *observe, act, get a reward* have in common: one tool with which the agent acts.

The agent's words change nothing in such an environment; only calls of its tool do. The reward of an episode is the sum of
those of its steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.adapters.unseen import Unseen
from envs.protocol import Action, Score
from rl_system.errors import UserError
from rl_system.records import Ending, Task

TOOL = "act"
SEEDS = {"train": range(256), "test": range(10_000, 10_064)}
"""Of `reset`, by split: where nothing else is said, these are the tasks."""


class WrongAction(ValueError):
    """What the agent asked for is no action. The message is written for the agent."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one action. text: what the agent gets to see."""

    text: str
    reward: float = 0.0
    ended: Ending | None = None


def seed_tasks(module: str, domain: str, seeds: Mapping[str, Sequence[int]], split: str) -> list[Task]:
    """The tasks of `split` of the environment module `module`: each is a seed. UserError for a split that it has not got."""
    if split not in seeds:
        raise UserError(f"environment.split is {split!r}; {module} has {', '.join(seeds)}")
    return [Task(module, domain, str(seed), split) for seed in seeds[split]]


class SteppingEnvironment(Unseen, ABC):
    """An environment of the protocol (`envs.protocol.Environment`) around `begin` and `act`.

    instructions: the system message. parameters: JSON schema of the tool's arguments, an object.
    """

    def __init__(self, instructions: str, parameters: dict[str, Any]) -> None:
        super().__init__()
        self._instructions, self._parameters = instructions, parameters
        self._rewards: list[float] = []

    @abstractmethod
    def begin(self) -> str:
        """Start; what there is to see."""

    @abstractmethod
    def act(self, arguments: dict[str, Any]) -> Outcome:
        """Carry out one action. Raises WrongAction."""

    @abstractmethod
    def close(self) -> None:
        """As in the protocol."""

    def reset(self) -> None:
        self._unseen = [{"role": "system", "content": self._instructions}, {"role": "user", "content": self.begin()}]

    def tools(self) -> list[dict[str, Any]]:
        function = {"name": TOOL, "description": "Act in the environment.", "parameters": self._parameters}
        return [{"type": "function", "function": function}]

    def step(self, action: Action) -> None:
        if not action.tool_calls:
            self._unseen.append({"role": "user", "content": f"Nothing happened: act by calling {TOOL}."})
            self._errors += 1
        for call in action.tool_calls:
            self._unseen.append({"role": "tool", "tool_call_id": call.call_id, "content": self._answer(call)})

    def score(self, ended: Ending) -> Score:
        return Score(float(sum(self._rewards)), {"steps_rewarded": float(sum(each != 0 for each in self._rewards))})

    def demonstration(self) -> list[Action]:
        """None is known."""
        return []

    def _answer(self, call: Any) -> str:
        if self._ended is not None:
            return "The episode is over; this changed nothing."
        try:
            if call.name != TOOL:
                raise WrongAction(f"there is no tool {call.name!r}, only {TOOL!r}")
            outcome = self.act(call.arguments)
        except WrongAction as wrong:
            self._errors += 1
            return f"Error: {wrong}."
        self._rewards.append(outcome.reward)
        self._ended = outcome.ended
        return outcome.text
