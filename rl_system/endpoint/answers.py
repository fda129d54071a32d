"""From a sampled turn to what an agent is given: words, thinking and calls.

A response with a call that is none is given as mere words, as servers of such models do. Invariant: what is given stands for
the tokens as they were sampled, never the other way round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Literal

from envs.protocol import Message
from rl_system.chat.renderer import Renderer
from rl_system.chat.tool_calls import MalformedCall, split_thinking
from rl_system.endpoint.requests import read_arguments
from rl_system.records import Turn

Finish = Literal["stop", "length", "tool_calls", "stop_text"]


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """call_id: without what a protocol puts before it. arguments: JSON of an object."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """stop_text: which of the texts that were to end the turn did. malformed: calls that were none."""

    text: str
    thinking: str
    calls: tuple[AnsweredCall, ...]
    finish: Finish
    stop_text: str | None = None
    malformed: int = 0

    def as_message(self) -> Message:
        """The message that a client sends back for it."""
        message: Message = {"role": "assistant", "content": self.text, "reasoning": self.thinking}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": read_arguments(call.arguments)},
                }
                for call in self.calls
            ]
        return message


def answer_of(turn: Turn, renderer: Renderer, *, stop_text: str | None, calls: bool, call_prefix: str) -> Answer:
    """stop_text: what ended the turn, see `cut_at_stop`. calls: whether calls are read at all. call_prefix: what the ids of
    its calls begin with."""
    text = renderer.text(turn.response_ids)
    if stop_text is not None:
        text = text[: text.index(stop_text)]
    response = renderer.parse_text(text)
    malformed = sum(isinstance(call, MalformedCall) for call in response.calls)
    if malformed or not calls:
        thinking, visible = split_thinking(text)
        said, answered = visible.strip(), ()
    else:
        thinking, said = response.thinking, response.text
        answered = tuple(
            AnsweredCall(f"{call_prefix}{number}", call.name, json.dumps(call.arguments, ensure_ascii=False))
            for number, call in enumerate(response.calls)
        )
    finish: Finish = "length" if turn.finish_reason == "length" else "tool_calls" if answered else "stop"
    if stop_text is not None:
        finish = "tool_calls" if answered else "stop_text"
    return Answer(said, thinking, answered, finish, stop_text, malformed if calls else 0)


def cut_at_stop(turn: Turn, renderer: Renderer, stop: tuple[str, ...]) -> tuple[Turn, str | None]:
    """The turn up to the token with which a text of `stop` was complete, and which text that was.

    Where to stop is decided by the tokens up to there alone, so the cut turn is a sample as if the engine had stopped there:
    its tokens keep their logprobs and versions, and those after it were never part of the episode.
    """
    if not any(each in renderer.text(turn.response_ids) for each in stop):
        return turn, None
    low, high = 0, len(turn.response_ids)  # without and with a stop text
    while high - low > 1:
        middle = (low + high) // 2
        text = renderer.text(turn.response_ids[:middle])
        low, high = (low, middle) if any(each in text for each in stop) else (middle, high)
    text = renderer.text(turn.response_ids[:high])
    found = min((each for each in stop if each in text), key=lambda each: (text.index(each), -len(each)))
    cut = replace(
        turn,
        response_ids=turn.response_ids[:high],
        logprobs=turn.logprobs[:high],
        versions=turn.versions[:high],
        finish_reason="stop",
    )
    return cut, found
