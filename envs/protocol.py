"""What an environment is: a chat partner with tools that can tell how well a task was solved.

An environment lives for one episode of one task, belongs to one thread at a time, and shares no mutable state with
any other. It is synchronous; `envs.host` puts it into a worker process and makes it awaitable.

Messages are chat messages as plain dicts, the form that chat templates take: `role` (system, user, assistant, tool),
`content`, and for an assistant that acts `tool_calls` (`[{"id", "type": "function", "function": {"name",
"arguments"}}]`, arguments as an object). Nothing an agent does may make `step` raise: a wrong call is answered by a
tool message that says what was wrong. An exception that escapes means that the environment itself is broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from rl_system.records import Ending

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A well-formed call: some name, and arguments that are a JSON object. Whether the tool exists is not its
    affair."""

    name: str
    arguments: dict[str, Any]
    call_id: str = ""

    def as_message_part(self) -> dict[str, Any]:
        """The entry of a chat message's `tool_calls`."""
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True)
class Action:
    """What the agent does in one turn: says something, calls tools, or both. Never holds thinking."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent gets to see next.

    messages: everything since the last observation, in order. ended: set once the environment ended the episode;
    then nothing more may be done. errors: how many calls of the last action failed.
    """

    messages: list[Message] = field(default_factory=list)
    ended: Ending | None = None
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """The environment's verdict on a whole episode. `parts` is what `reward` was made of, by name."""

    reward: float
    parts: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Events by name that only the environment can see, such as `evaluator_errors`."""


class Environment(Protocol):
    """One task, one episode. Called in the order reset, observe, (step, observe)…, score, close."""

    def reset(self) -> None:
        """Build the task's initial state. Called exactly once, and where the cost of building belongs."""

    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, in the form `{"type": "function", "function": {…}}`. Constant after `reset`."""

    def observe(self) -> Observation:
        """What happened since the last call; after `reset` the whole opening of the dialogue."""

    def step(self, action: Action) -> None:
        """Carry out `action` and, where there is one, let the user answer it."""

    def score(self, ended: Ending) -> Score:
        """Reward of the episode, given why it ended. Changes nothing that the agent could still see."""

    def demonstration(self) -> list[Action]:
        """A known solution of the task from its initial state; empty where there is none."""

    def close(self) -> None:
        """Release what the environment holds. Called exactly once, also after a failure."""


class AsyncEnvironment(Protocol):
    """An environment as the agent loop sees it: awaitable, time-limited, perhaps in another process.

    Every method but `close` raises EnvironmentFailed where the environment or its host broke.
    """

    async def reset(self) -> tuple[Observation, list[dict[str, Any]]]:
        """Start, then observe; also the tool schemas."""

    async def step(self, action: Action) -> Observation:
        """Step, then observe."""

    async def score(self, ended: Ending) -> Score: ...

    async def demonstration(self) -> list[Action]: ...

    async def close(self) -> None:
        """Never raises, may be called at any time and more than once."""


class EnvironmentFailed(Exception):
    """The environment or its host broke: crashed, hung, raised, or gave what it may not. Says nothing about the policy.

    The message is one line, with the place in the environment's code where there is one. details: the whole traceback, or
    where a hanging environment stands; "" where there is none.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message, details)
        self.details = details

    def __str__(self) -> str:
        return self.args[0]
