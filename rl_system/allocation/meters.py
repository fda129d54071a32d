"""Where time went: exact time averages of states and levels, given moments and never a clock.

The shares of a `StateMeter` over any window add up to 1, and a `LevelMeter` is the integral of its level divided by the
length of the window. Idle and waiting shares steer the allocation policy, so they are computed here and nowhere else.
"""

from __future__ import annotations


class StateMeter:
    """Time that one thing spent in each of its states, since the window was opened."""

    def __init__(self, state: str, now: float) -> None:
        self.state = state
        self._opened = now
        self._since = now
        self._seconds: dict[str, float] = {}

    def switch(self, state: str, now: float) -> None:
        self._settle(now)
        self.state = state

    def seconds(self, state: str, now: float) -> float:
        self._settle(now)
        return self._seconds.get(state, 0.0)

    def share(self, state: str, now: float) -> float:
        """Share of the window in `state`; 0 for a window of no length."""
        length = now - self._opened
        return min(self.seconds(state, now) / length, 1.0) if length > 0 else 0.0

    def reopen(self, now: float) -> None:
        """Begin a new window in the present state."""
        self._settle(now)
        self._opened = now
        self._seconds.clear()

    def _settle(self, now: float) -> None:
        if now < self._since:
            raise ValueError(f"meter: time ran backwards, from {self._since} to {now}")
        self._seconds[self.state] = self._seconds.get(self.state, 0.0) + now - self._since
        self._since = now


class LevelMeter:
    """Time average of a level (running episodes, empty slots, busy engines), since the window was opened."""

    def __init__(self, level: float, now: float) -> None:
        self.level = level
        self._opened = now
        self._since = now
        self._area = 0.0

    def set(self, level: float, now: float) -> None:
        if level != self.level:
            self._settle(now)
            self.level = level

    def area(self, now: float) -> float:
        """Integral of the level over the window, in level·seconds."""
        self._settle(now)
        return self._area

    def mean(self, now: float) -> float:
        """Time average over the window; the present level for a window of no length."""
        length = now - self._opened
        return self.area(now) / length if length > 0 else self.level

    def reopen(self, now: float) -> None:
        self._settle(now)
        self._opened = now
        self._area = 0.0

    def _settle(self, now: float) -> None:
        if now < self._since:
            raise ValueError(f"meter: time ran backwards, from {self._since} to {now}")
        self._area += self.level * (now - self._since)
        self._since = now
