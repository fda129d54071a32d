"""Made-up dialogues with a model that calls tools, said in the protocols that the endpoint speaks.

Words are drawn from a fixed seed and differ from session to session, so that nothing is known from another one.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl_system.endpoint import anthropic_messages, chat_completions, responses

WORDS = (
    "order parcel arrives today customer asks whether refund address changed look number street again tell them we will "
    "send it back tomorrow morning please check status of delivery and payment before closing ticket"
).split()
PARAMETERS = {
    "type": "object",
    "properties": {"key": {"type": "string", "description": "What to look for."}, "limit": {"type": "integer"}},
    "required": ["key"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Look something up.", "parameters": PARAMETERS}}
    for name in ("find_order", "find_customer", "find_parcel", "send_note")
]
MODEL = "policy"


def said(words: int, seed: str) -> str:
    """So many words, about as many tokens."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def answered(words: int, number: int) -> str:
    """What the model says: every other time it calls a tool."""
    text = said(words, f"answer {number}")
    if number % 2:
        return text
    call = {"name": TOOLS[number % len(TOOLS)]["function"]["name"], "arguments": {"key": text, "limit": number}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Protocol:
    """path: of calls. body: what is sent of a history. back: what a client keeps of an answer; call: the tool call in it, if
    any; result: of that call."""

    path: str
    body: Callable[[str, list[dict[str, Any]]], dict[str, Any]]
    back: Callable[[dict[str, Any]], list[dict[str, Any]]]
    call: Callable[[list[dict[str, Any]]], str | None]
    result: Callable[[str, str], dict[str, Any]]


PROTOCOLS = {
    "chat": Protocol(
        chat_completions.PATH,
        lambda system, history: {"messages": [{"role": "system", "content": system}, *history], "tools": TOOLS},
        lambda answer: [answer["choices"][0]["message"]],
        lambda back: next((call["id"] for call in back[0].get("tool_calls") or ()), None),
        lambda call, text: {"role": "tool", "tool_call_id": call, "content": text},
    ),
    "responses": Protocol(
        responses.PATH,
        lambda system, history: {
            "instructions": system, "input": history, "tools": [{"type": "function", **tool["function"]} for tool in TOOLS],
        },
        lambda answer: answer["output"],
        lambda back: next((item["call_id"] for item in back if item["type"] == "function_call"), None),
        lambda call, text: {"type": "function_call_output", "call_id": call, "output": text},
    ),
    "messages": Protocol(
        anthropic_messages.PATH,
        lambda system, history: {
            "system": system, "messages": history, "max_tokens": 4096,
            "tools": [
                {"name": tool["function"]["name"], "description": tool["function"]["description"], "input_schema": PARAMETERS}
                for tool in TOOLS
            ],
        },
        lambda answer: [{"role": "assistant", "content": answer["content"]}],
        lambda back: next((block["id"] for block in back[0]["content"] if block["type"] == "tool_use"), None),
        lambda call, text: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": text}]},
    ),
}  # fmt: skip
"""By the name of the protocol."""


class Connection:
    """One kept HTTP connection: no more than a benchmark needs, so that it takes little from the server that it measures."""

    def __init__(self, address: str, key: str) -> None:
        self._host, _, port = address.removeprefix("http://").partition(":")
        self._port, self._key = int(port), key

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer. RuntimeError where it is none."""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\nauthorization: Bearer {self._key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        status, _, headers = (await self._reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
        length = next(line for line in headers.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        answer = await self._reader.readexactly(int(length.split(b":")[1]))
        if status.split()[1] != b"200":
            raise RuntimeError(f"the endpoint answered {status.decode()}: {answer.decode()}")
        return json.loads(answer)

    def close(self) -> None:
        self._writer.close()


class Session:
    """A client's side of one dialogue."""

    def __init__(self, protocol: Protocol, connection: Connection, number: int, opening: int, message: int) -> None:
        self._protocol, self._connection, self._number, self._message = protocol, connection, number, message
        self._system = said(opening, f"policy of {number}")
        self._history: list[dict[str, Any]] = [{"role": "user", "content": said(message, f"{number}")}]
        self._turns = 0

    async def turn(self) -> None:
        """Call once, and add the answer and what comes next to the history."""
        body = self._protocol.body(self._system, self._history)
        answer = await self._connection.post(self._protocol.path, body | {"model": MODEL})
        self._turns += 1
        back = self._protocol.back(answer)
        call, text = self._protocol.call(back), said(self._message, f"{self._number} {self._turns}")
        self._history += [*back, self._protocol.result(call, text) if call else {"role": "user", "content": text}]
