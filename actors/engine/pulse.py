"""Whether the engine's own process still answers, which may hang while everything around it lives.

Between two steps the engine answers at once. A step may take long (a long prompt on a slow device), and many requests may
wait for theirs: neither is a hang. So the limit is on one answer, and generous.
"""

from __future__ import annotations

import asyncio

from vllm.v1.engine.async_llm import AsyncLLM

from actors.engine.errors import EngineBroken
from rl_system.allocation.heartbeat import Heartbeat

LEAST_LIMIT_S = 120.0
"""No device that can serve a model takes longer for one step."""


class EnginePulse:
    """step_s: longest that one step of `engine` may take; at least `LEAST_LIMIT_S` are allowed."""

    def __init__(self, engine: AsyncLLM, step_s: float) -> None:
        self._engine = engine
        self._limit_s = max(step_s, LEAST_LIMIT_S)
        self._asked: asyncio.Future[bool] | None = None
        self._beat = Heartbeat(self._limit_s)

    def feel(self) -> None:
        """Ask the engine, unless it is being asked. Raises EngineBroken where it owes an answer for too long, or died.

        Not during an update: the engine answers after that.
        """
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            if (error := asked.exception()) is not None:
                raise EngineBroken(f"the engine failed: {error!r}") from error
        if self._asked is None:
            self._beat.beat()
            self._asked = asyncio.ensure_future(self._engine.is_paused())
        elif self._beat.stopped:
            raise EngineBroken(f"the engine hangs: it has not answered for {self._beat.silent_s:.0f} s")

    def close(self) -> None:
        """Ask no more."""
        if self._asked is not None:
            self._asked.cancel()
