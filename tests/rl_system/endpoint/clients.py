"""Samplers and clients of sessions that a test looks through."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_system.chat.agent import Limits
from rl_system.chat.renderer import Renderer
from rl_system.endpoint.calls import Call
from rl_system.endpoint.requests import TurnRequest, read_arguments
from rl_system.endpoint.sessions import Session
from rl_system.records import Turn
from tests.rl_system.chat.dialogues import limits, make_renderer

TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]


@dataclass
class Engine:
    """Samples what it is told to and remembers all that it was given and gave: (prompt ids, response ids).

    gate: where given, requests wait until it is set.
    """

    responses: list[np.ndarray]
    gate: asyncio.Event | None = None
    done: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0

    async def __call__(self, prompt_ids, max_new_tokens, *, repeat, seed, stop) -> Turn:
        self.asked.append({"prompt_ids": prompt_ids, "max_new_tokens": max_new_tokens, "repeat": repeat, "seed": seed})
        try:
            await (self.gate.wait() if self.gate else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        whole = self.responses.pop(0)
        ids = whole[:max_new_tokens]
        number = len(self.done)
        self.done.append((prompt_ids, ids))
        return Turn(
            prompt_ids,
            ids,
            -np.arange(1, len(ids) + 1, dtype=np.float32),
            np.full(len(ids), number, np.int32),
            "stop" if len(ids) == len(whole) else "length",
        )


def written(renderer: Renderer, *texts: str) -> list[np.ndarray]:
    return [np.append(renderer.tokenize(text), np.int32(renderer.end_id)).astype(np.int32) for text in texts]


def session(engine: Engine, renderer: Renderer | None = None, *, name: str = "a", ordered: bool = False, **bounds) -> Session:
    bounds = {"max_turns": 1000} | bounds
    return Session(renderer or make_renderer(), limits(**bounds), engine, name, ordered)


def bounds(**values: float) -> Limits:
    return limits(**values)


def ask(messages: list[dict], tools: list[dict] | None = None, **rest) -> TurnRequest:
    """A request that shares nothing with what the test holds."""
    return TurnRequest(copy.deepcopy(messages), copy.deepcopy(TOOLS if tools is None else tools), **rest)


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def system(text: str) -> dict:
    return {"role": "system", "content": text}


def sent_back(call: Call, *, ids: bool = True, reasoning: bool = True) -> dict:
    """The answer as a client gives it back: other white space, other order of keys, perhaps without ids and thinking."""
    message = copy.deepcopy(call.answer.as_message())
    for each in message.get("tool_calls", ()):
        function = each["function"]
        if isinstance(function["arguments"], dict):
            turned = dict(reversed(function["arguments"].items()))
            function["arguments"] = read_arguments(json.dumps(turned, indent=3, ensure_ascii=True))
        if not ids:
            each["id"] = "other"
    if not reasoning:
        message.pop("reasoning", None)
    return message
