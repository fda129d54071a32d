"""Who answers the agent in a dialogue. Alone (solo mode) nobody does and no user exists.

A user sees the agent's words only: never its thinking, its calls or their results. It alone ends a dialogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from envs.tau2.upstream import (
    AssistantMessage,
    StructuredUserInstructions,
    ToolMessage,
    UpstreamMessage,
    UpstreamTask,
    UpstreamToolCall,
    UserMessage,
    UserSimulator,
    World,
)

STOP = "###STOP###"


class User(Protocol):
    counts: Mapping[str, int]
    """What it cost so far, by name: `user_requests`, `user_prompt_tokens`, …; part of the episode's counts."""

    def open(self, task: UpstreamTask, world: World, history: list[UpstreamMessage]) -> None:
        """Learn the task, and what was said before the agent's last message."""

    def reply(self, message: AssistantMessage | list[ToolMessage]) -> UserMessage:
        """Answer the agent's words, or the results of the user's own last calls: with words, or with calls."""


def ends_dialogue(message: UserMessage) -> bool:
    return UserSimulator.is_stop(message)


class ScriptedUser:
    """Follows the task's known information and its gold user actions, without a model.

    It tells what it knows in its first reply. Asked for one of its gold actions by name (`toggle_data`, or
    "toggle data"), it carries that action out, in the gold order. It leaves when the agent's words ask for
    nothing that it can still do.
    """

    counts: Mapping[str, int] = {}

    def open(self, task: UpstreamTask, world: World, history: list[UpstreamMessage]) -> None:
        actions = task.evaluation_criteria.actions if task.evaluation_criteria else None
        self._pending = [action for action in actions or [] if action.requestor == "user"]
        self._request = _request(task)
        self._told = False

    def reply(self, message: AssistantMessage | list[ToolMessage]) -> UserMessage:
        if isinstance(message, list):
            return UserMessage(role="user", content="\n".join(f"Done. {each.content}" for each in message))
        words = (message.content or "").lower().replace("_", " ")
        asked = next((action for action in self._pending if action.name.replace("_", " ") in words), None)
        if asked is not None:
            self._pending.remove(asked)
            call = UpstreamToolCall(
                id=asked.action_id, name=asked.name, arguments=dict(asked.arguments), requestor="user"
            )
            return UserMessage(role="user", tool_calls=[call])
        if not self._told:
            self._told = True
            return UserMessage(role="user", content=self._request)
        return UserMessage(role="user", content=STOP)


def _request(task: UpstreamTask) -> str:
    instructions = task.user_scenario.instructions
    if isinstance(instructions, StructuredUserInstructions):
        return "\n".join(filter(None, (instructions.reason_for_call, instructions.known_info)))
    return instructions
