"""Statistics that add up: over blocks, over minibatches, over ranks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Statistics:
    """Means as (total, count), maxima, and effective sample sizes, by metric name.

    Every field is a plain sum or maximum, so merging gives the same in any order of any parts (sums up to rounding).
    """

    totals: dict[str, tuple[float, float]] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    weights: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Of importance weights: sum, sum of squares, count."""

    def add(self, name: str, total: float, count: float) -> None:
        old_total, old_count = self.totals.get(name, (0.0, 0.0))
        self.totals[name] = (old_total + total, old_count + count)

    def maximum(self, name: str, value: float) -> None:
        self.maxima[name] = max(self.maxima.get(name, float("-inf")), value)

    def weigh(self, name: str, total: float, squares: float, count: float) -> None:
        """Add `count` importance weights by their sum and their sum of squares."""
        old = self.weights.get(name, (0.0, 0.0, 0.0))
        self.weights[name] = (old[0] + total, old[1] + squares, old[2] + count)

    def merge(self, other: Statistics) -> None:
        for name, (total, count) in other.totals.items():
            self.add(name, total, count)
        for name, value in other.maxima.items():
            self.maximum(name, value)
        for name, (total, squares, count) in other.weights.items():
            self.weigh(name, total, squares, count)

    def values(self) -> dict[str, float]:
        """Mean of each total that counted anything, each maximum, and each effective sample size as a share of the
        count: `(Σw)² / (n · Σw²)` (Kong 1992), 0 where every weight is 0.
        """
        means = {name: total / count for name, (total, count) in self.totals.items() if count > 0}
        sizes = {
            name: total**2 / (count * squares) if squares > 0 else 0.0
            for name, (total, squares, count) in self.weights.items()
            if count > 0
        }
        return means | self.maxima | sizes
