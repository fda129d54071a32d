"""The wall clock of one episode, which stands still while nobody could play it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class EpisodeClock:
    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None

    def limit(self, seconds: float) -> asyncio.Timeout:
        """A scope that raises TimeoutError after `seconds` in which the clock ran."""
        self._scope = asyncio.timeout(seconds)
        return self._scope

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The clock stands still inside."""
        scope, loop = self._scope, asyncio.get_running_loop()
        due = None if scope is None or scope.expired() else scope.when()
        if due is None:
            yield
            return
        left = due - loop.time()
        scope.reschedule(None)
        try:
            yield
        finally:
            if not scope.expired():
                scope.reschedule(loop.time() + left)
