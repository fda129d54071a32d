"""When two messages are the same, as a digest.

The same are messages with the same role, text and calls. What a client may change without changing what was said does not
count: the order of keys and white space in arguments of calls, ids of calls, how a number is spelled, and whether an
assistant's reasoning comes back at all. Digests are long enough to stand for what they were made of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from envs.protocol import Message

SIZE = 16


def tools_digest(tools: list[dict[str, Any]]) -> bytes:
    return _digest(_canonical(tool) for tool in tools)


def message_digest(message: Message) -> bytes:
    parts = [message["role"], message["content"]]
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        parts += [call["function"]["name"], arguments if isinstance(arguments, str) else _canonical(arguments)]
    return _digest(parts)


def prefix_digests(tools: bytes, messages: Iterable[bytes]) -> list[bytes]:
    """Of the first 0, 1, 2, … of `messages` under `tools`, by the digests of these."""
    prefixes = [tools]
    for message in messages:
        prefixes.append(longer(prefixes[-1], message))
    return prefixes


def longer(prefix: bytes, message: bytes) -> bytes:
    """The digest of a dialogue that `message` was added to."""
    return blake2b(prefix + message, digest_size=SIZE).digest()


def _digest(parts: Iterable[str]) -> bytes:
    """Of texts in their order; lengths keep what is in one of them from running over into the next."""
    digest = blake2b(digest_size=SIZE)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8))
        digest.update(encoded)
    return digest.digest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
