"""The calls of one episode as a tree: which earlier call each goes on from.

A call goes on from the deepest earlier one whose messages and answer, together, are the beginning of its own messages. It is
found by digests of prefixes: in one pass over the messages, however many calls there were.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_system.chat.renderer import Dialogue
from rl_system.endpoint.answers import Answer
from rl_system.endpoint.message_digest import longer, message_digest, prefix_digests, tools_digest
from rl_system.endpoint.requests import TurnRequest
from rl_system.records import Turn


@dataclass(slots=True)
class Call:
    """One call that a turn answered.

    number: in the order in which calls came; some of them are never answered. parent: the call that it goes on from. opening:
    how many of its messages that call and its answer cover. edited: whether it repeats history, but not as it was.
    dialogue: what its prompt was made from. repeat: how many earlier calls of the episode had the very same prompt.
    """

    number: int
    completion_id: str
    request: TurnRequest
    parent: Call | None
    opening: int
    edited: bool
    dialogue: Dialogue
    repeat: int
    turn: Turn
    answer: Answer
    extended: bool = False
    """Whether another call went on from it."""


@dataclass(slots=True)
class Place:
    """Where a request stands among the calls. digest: of its tools and messages."""

    parent: Call | None
    opening: int
    edited: bool
    digest: bytes


@dataclass(slots=True)
class CallTree:
    _ends: dict[bytes, list[Call]] = field(default_factory=dict)
    """Calls by what they are with their answer."""
    _asked: set[bytes] = field(default_factory=set)
    """What calls were before their answer."""
    _answers: set[bytes] = field(default_factory=set)

    def place(self, request: TurnRequest) -> Place:
        each, tools = request.digests, request.tools_digest
        each = [message_digest(message) for message in request.messages] if each is None else each
        prefixes = prefix_digests(tools_digest(request.tools) if tools is None else tools, each)
        opening, parent = 0, None
        for length in range(len(request.messages), 0, -1):
            message = request.messages[length - 1]
            if message["role"] == "assistant" and (ends := self._ends.get(prefixes[length])):
                parent = _meant(message, ends)
                if parent is not None:
                    opening = length
                    break
        edited = any(
            request.messages[i]["role"] == "assistant" and (each[i] in self._answers or prefixes[i] in self._asked)
            for i in range(opening, len(request.messages))
        )
        return Place(parent, opening, edited, prefixes[-1])

    def add(self, call: Call, digest: bytes) -> None:
        """digest: of its place."""
        answered = message_digest(call.answer.as_message())
        self._asked.add(digest)
        self._answers.add(answered)
        self._ends.setdefault(longer(digest, answered), []).append(call)
        if call.parent is not None:
            call.parent.extended = True


def _meant(message: dict, calls: list[Call]) -> Call | None:
    """Which of several calls that were asked and said the same a client means: the one whose ids it gives, then one with the
    thinking that it gives, then one that nothing went on from yet. None where it gives thinking that is none of theirs."""
    given = {call["id"] for call in message.get("tool_calls") or ()}
    identified = [call for call in calls if given & {each.call_id for each in call.answer.calls}]
    reasoning = message.get("reasoning")
    if reasoning:
        calls = [call for call in identified or calls if call.answer.thinking == reasoning]
    else:
        calls = identified or calls
    return min(calls, key=lambda call: (call.extended, call.number), default=None)
