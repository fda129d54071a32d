"""The course of a run within one command: signals, and how many lives it takes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from rl_system.origin import one_line
from rl_system.recovery import Attempts, PartLost


class Course:
    """How far a run has come, and whether it was asked to stop.

    begun: all of it came up once, in this life or an earlier one. closing: it ends by itself now, and may do so undisturbed.
    started: see `Tracker`. losses: that ended lives, and are not noted yet.
    """

    def __init__(self, begun: bool, attempts: Attempts) -> None:
        self.begun, self.closing, self.attempts = begun, False, attempts
        self.started: float | None = None
        self.losses: list[dict[str, Any]] = []
        self._stop = asyncio.Event()

    def stop(self) -> None:
        if not self._stop.is_set():
            print("stopping", file=sys.stderr, flush=True)
        self._stop.set()

    async def run(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await `work` unless a signal asks to stop first; then cancel it. Whether it was. Errors of `work` are raised."""
        for number in (signal.SIGINT, signal.SIGTERM):  # after Ray, which installs handlers of its own
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not (working.done() or self.closing):
            working.cancel()
        try:
            await working
        except asyncio.CancelledError:
            return True
        return False

    def goes_on_after(self, error: Exception, step: int) -> bool:
        """Whether another life follows the one that `error` ended after `step` updates."""
        if not (self.begun and isinstance(error, PartLost) and self.attempts.another(step)):
            return False
        self.losses.append({"part": error.part, "reason": one_line(error.reason), "after_step": step})
        print(f"{one_line(str(error))}; the run's actors are started anew", file=sys.stderr, flush=True)
        return True

    def begin_life(self) -> None:
        """Raises CancelledError where a signal came while an earlier life was closing."""
        if self._stop.is_set():
            raise asyncio.CancelledError
        self.closing = False
