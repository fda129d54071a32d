"""A request for a turn, in whatever protocol it came.

Messages are chat messages in the form that chat templates take (`envs.protocol.Message`), with `content` always a text,
arguments of calls as the object they spell, and an assistant's `reasoning` beside its content.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from envs.protocol import Message


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What is asked of the model.

    tools: schemas in the form `{"type": "function", "function": {…}}`. max_tokens: most new tokens; None: as many as the
    run allows. stop: texts that end the turn. seed: of its random numbers, beside what the run and the place of the call
    in its episode say. calls: whether calls of tools are read from the response. protocol, caller: for people. digests,
    tools_digest: of each message and of the tools, where they are known.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    calls: bool = True
    protocol: str = ""
    caller: str = ""
    digests: list[bytes] | None = None
    tools_digest: bytes | None = None


def read_arguments(text: str) -> dict[str, Any] | str:
    """The object that `text` spells, or `text` itself where it spells none."""
    try:
        value = json.loads(text or "{}", parse_float=_number)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _number(text: str) -> int | float:
    """`1.0` and `1` are one number to JSON, and come back as either from clients in other languages."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value
