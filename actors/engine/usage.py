"""What an engine has done with its time: counters and the share of time with at least one request.

A plain object that is told events; its clock is passed in. The controller reads idle shares from here, so time counts
as busy exactly while at least one request is in the engine, and seconds busy and idle always add up to the lifetime.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class EngineUsage:
    """`clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._busy_s = 0.0
        self._idle_s = 0.0
        self.requests = 0
        """In the engine now: running or waiting."""
        self.finished_requests = 0
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.updates = 0
        self.update_s = 0.0
        self.paused_s = 0.0
        """Part of `update_s` in which no token was made."""

    def request_started(self) -> None:
        self._advance()
        self.requests += 1

    def request_ended(self) -> None:
        self._advance()
        self.requests -= 1

    def request_finished(self, *, prompt_tokens: int, cached_prompt_tokens: int, generated_tokens: int) -> None:
        """A request came to its own end, with what it took."""
        self.finished_requests += 1
        self.prompt_tokens += prompt_tokens
        self.cached_prompt_tokens += cached_prompt_tokens
        self.generated_tokens += generated_tokens

    def updated(self, *, seconds: float, paused: float) -> None:
        self.updates += 1
        self.update_s += seconds
        self.paused_s += paused

    def report(self) -> dict[str, float]:
        """Totals since the engine started. Rates over a stretch of time are differences of two reports."""
        self._advance()
        return {
            "requests": self.requests,
            "finished_requests": self.finished_requests,
            "generated_tokens": self.generated_tokens,
            "prompt_tokens": self.prompt_tokens,
            "cached_prompt_tokens": self.cached_prompt_tokens,
            "busy_s": self._busy_s,
            "idle_s": self._idle_s,
            "updates": self.updates,
            "update_s": self.update_s,
            "paused_s": self.paused_s,
        }

    def _advance(self) -> None:
        now = self._clock()
        if self.requests:
            self._busy_s += now - self._since
        else:
            self._idle_s += now - self._since
        self._since = now
