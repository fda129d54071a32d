"""Statistics that add up: over blocks, over minibatches, over ranks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Statistics:
    """Means as (total, count) and maxima, by metric name. Merging is exact in any order of any parts."""

    totals: dict[str, tuple[float, float]] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, total: float, count: float) -> None:
        old_total, old_count = self.totals.get(name, (0.0, 0.0))
        self.totals[name] = (old_total + total, old_count + count)

    def maximum(self, name: str, value: float) -> None:
        self.maxima[name] = max(self.maxima.get(name, float("-inf")), value)

    def merge(self, other: Statistics) -> None:
        for name, (total, count) in other.totals.items():
            self.add(name, total, count)
        for name, value in other.maxima.items():
            self.maximum(name, value)

    def values(self) -> dict[str, float]:
        """Mean of each total that counted anything, and each maximum."""
        means = {name: total / count for name, (total, count) in self.totals.items() if count > 0}
        return means | self.maxima
