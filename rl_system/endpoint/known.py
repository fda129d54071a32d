"""What a session was sent before, so that a history that comes again is not read again.

A call repeats all that was said before it. What has been read once is known by its very content, down to the types of
numbers: it is checked, turned into messages and digested once, and then costs a look-up. Nothing of a refused message is
known, and what is known is bounded: beyond that all is forgotten, and read again when it comes.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any

from envs.protocol import Message
from rl_system.endpoint.message_digest import message_digest, tools_digest
from rl_system.endpoint.refusals import Refused

MOST_BYTES = 4 << 20
"""Of content that is known."""
FORMAT = 2
"""Of marshal: the last one that spells equal content equally."""


class Known:
    """Messages and lists of tools that come out of here are shared between requests: nobody changes them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Callable, bytes], Any] = {}
        self._bytes = 0

    def messages(
        self, items: list[Any], read: Callable[[Any, Any], list[Message]], places: list[Any]
    ) -> tuple[list[Message], list[bytes]]:
        """The messages that `items` of a request are, and their digests. read: of one item, by its place; raises Refused."""
        messages: list[Message] = []
        digests: list[bytes] = []
        for item, place in zip(items, places, strict=True):
            key = read, self._content(item)
            found = self._known.get(key)
            if found is None:
                new = read(item, place)
                found = self._remember(key, (new, [message_digest(message) for message in new]))
            messages += found[0]
            digests += found[1]
        return messages, digests

    def tools(self, given: list[Any], read: Callable[[list[Any]], list[dict[str, Any]]]) -> tuple[list[dict[str, Any]], bytes]:
        """The tools that `given` are, and their digest. read: raises Refused."""
        key = read, self._content(given)
        found = self._known.get(key)
        if found is None:
            tools = read(given)
            found = self._remember(key, (tools, tools_digest(tools)))
        return found

    def _content(self, value: Any) -> bytes:
        try:
            return marshal.dumps(value, FORMAT)
        except ValueError:
            raise Refused("the request is nested too deeply") from None

    def _remember(self, key: tuple[Callable, bytes], value: Any) -> Any:
        if self._bytes > MOST_BYTES:
            self._known.clear()
            self._bytes = 0
        self._bytes += len(key[1])
        self._known[key] = value
        return value
