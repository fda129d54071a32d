"""Whether something that is asked again and again still lives, which how long its work takes does not tell."""

from __future__ import annotations

import time
from collections.abc import Callable


class Heartbeat:
    """limit_s: a silence longer than this is no delay any more. Silence begins now. clock: seconds that never go back."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._heard = clock()

    def beat(self) -> None:
        """It answered."""
        self._heard = self._clock()

    @property
    def silent_s(self) -> float:
        return self._clock() - self._heard

    @property
    def stopped(self) -> bool:
        return self.silent_s > self.limit_s
