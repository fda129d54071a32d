"""Running ratios of amounts, such as tokens a group, that neither short windows nor empty ones distort.

A mean of the windows' ratios would count a short window, in which two groups happened to end, as much as a long one. Here
amounts are summed first and divided afterwards, so that every window counts with what happened in it.
"""

from __future__ import annotations


class Tally:
    """Sums of amounts by name; with each new window what was there before counts less. weight: of the newest window
    among windows of equal amounts, in (0, 1]."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._sums: dict[str, float] = {}

    def add(self, **amounts: float) -> None:
        """The amounts of one window, in any unit."""
        for name, amount in amounts.items():
            self._sums[name] = (1 - self._weight) * self._sums.get(name, 0.0) + self._weight * amount

    def ratio(self, over: str, under: str) -> float:
        """The one sum by the other; 0 where the other is nothing yet."""
        return self._sums.get(over, 0.0) / self._sums[under] if self._sums.get(under) else 0.0

    def state(self) -> dict[str, float]:
        return dict(self._sums)

    def restore(self, state: dict[str, float]) -> None:
        self._sums = dict(state)
