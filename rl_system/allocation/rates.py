"""How a side's rate grows with its accelerators, learnt while the run goes on.

Model: `rate(n) = r·g(n)^α` with g the growth that is expected of n accelerators relative to one (`growth`), so that
`log rate = log r + α·log g` is linear in two unknowns. They are fitted by weighted least squares in log space, in its recursive form with a random walk on the parameters (a Kalman filter; Harvey,
"Forecasting, Structural Time Series Models and the Kalman Filter", 1989, section 3.2). The two unknowns age
differently, and that is the point of this form:

- `log r` drifts with the workload (longer contexts, slower tools): a fast walk, so that the level follows within a few
  windows;
- `α` is what the expected growth misses, and belongs to the hardware and the engines: a slow walk, so that it is learnt
  from the *jump* of the rate at each move, and a workload that drifts between two moves is not mistaken for bad scaling, as
  it would be by a fit over a window of the past.

Until more than one number of accelerators has been seen, α is the prior's.
"""

from __future__ import annotations

import math
from typing import Any

LEVEL_WALK = 0.05
"""Standard deviation of the change of log r from one window to the next: a workload may drift by 5 % a window."""
EXPONENT_WALK = 0.004
EXPONENT_DEVIATION = 0.15
"""Of the prior on α."""
MEASUREMENT_DEVIATION = 0.08
"""Of one window's log rate: 8 %, what a window of a few dozen groups with uneven lengths shows."""
OUTLIER = 2.5
"""Deviations beyond which a measurement's weight falls off (Huber's influence): one failed window moves the level
little, a lasting change moves it within a few."""
EXPONENT_RANGE = (0.0, 1.2)
"""Adding accelerators never lowers a side's rate, and growth far beyond the expected one is a measuring fault."""


class RateFit:
    """Posterior of (log r, α) of one side."""

    def __init__(self, exponent: float = 1.0, exponent_deviation: float = EXPONENT_DEVIATION) -> None:
        self._mean = [0.0, exponent]
        self._covariance = [[0.0, 0.0], [0.0, exponent_deviation**2]]
        self.measurements = 0

    def update(self, growth: float, rate: float, deviation: float = 0.0) -> None:
        """Learn that accelerators with an expected `growth` (≥ 1) reached `rate` (> 0, any unit) in a window.

        deviation: extra standard deviation of log rate, on top of the usual one, for a window that shows less.
        """
        if not growth >= 1 or not rate > 0 or not math.isfinite(rate):
            raise ValueError(f"rate fit: rate {rate} at growth {growth}")
        log_g, log_rate = math.log(growth), math.log(rate)
        self.measurements += 1
        variance = MEASUREMENT_DEVIATION**2 + deviation**2
        (a, b), (_, d) = self._covariance
        if self.measurements == 1:
            # A flat prior on the level, in closed form: the first measurement fixes log r given α.
            self._mean[0] = log_rate - self._mean[1] * log_g
            self._covariance = [[variance + d * log_g**2, -d * log_g], [-d * log_g, d]]
            return
        a += LEVEL_WALK**2
        d += EXPONENT_WALK**2
        surprise = log_rate - self._mean[0] - self._mean[1] * log_g
        spread = a + 2 * b * log_g + d * log_g**2
        deviations = abs(surprise) / math.sqrt(spread + variance)
        if deviations > OUTLIER:
            variance = (spread + variance) * deviations / OUTLIER - spread
        gain = [(a + b * log_g) / (spread + variance), (b + d * log_g) / (spread + variance)]
        self._mean = [self._mean[0] + gain[0] * surprise, self._mean[1] + gain[1] * surprise]
        u, v = a + b * log_g, b + d * log_g
        self._covariance = [[a - gain[0] * u, b - gain[0] * v], [b - gain[0] * v, d - gain[1] * v]]

    @property
    def exponent(self) -> float:
        low, high = EXPONENT_RANGE
        return min(max(self._mean[1], low), high)

    def rate(self, growth: float, at: float) -> float:
        """Predicted rate at an expected `growth`, extrapolated from the level fitted at that of `at`."""
        if not self.measurements:
            raise ValueError("rate fit: no window was measured yet")
        level = math.exp(self._mean[0] + self._mean[1] * math.log(at))
        return level * (growth / at) ** self.exponent

    def deviation(self, growth: float) -> float:
        """Standard deviation of the predicted log rate."""
        (a, b), (_, d) = self._covariance
        x = math.log(growth)
        return math.sqrt(max(a + 2 * b * x + d * x * x, 0.0))

    def state(self) -> dict[str, Any]:
        covariance = [list(row) for row in self._covariance]
        return {"mean": list(self._mean), "covariance": covariance, "measurements": self.measurements}

    def restore(self, state: dict[str, Any]) -> None:
        self._mean = list(state["mean"])
        self._covariance = [list(row) for row in state["covariance"]]
        self.measurements = state["measurements"]
