"""Metrics of one call of an objective, moved off the device in one transfer.

An objective that runs once a block reports a dozen numbers each time; reading each with its own `float()` would stop
the device a dozen times.
"""

from __future__ import annotations

import torch

from rl_system.algorithms.statistics import Statistics


class Meter:
    """Collects detached values [P] by metric name; `statistics()` reads them all at once."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[torch.Tensor, int]] = {}
        self._maxima: dict[str, torch.Tensor] = {}
        self._weights: dict[str, tuple[torch.Tensor, torch.Tensor, int]] = {}

    def mean(self, name: str, values: torch.Tensor) -> None:
        """Mean over pairs. values: [P], bool or real."""
        self._totals[name] = (values.detach().sum(dtype=torch.float64), values.numel())

    def maximum(self, name: str, values: torch.Tensor) -> None:
        """Largest over pairs; nothing is recorded where there are none."""
        if values.numel():
            self._maxima[name] = values.detach().max().double()

    def effective(self, name: str, weights: torch.Tensor) -> None:
        """Effective sample size of importance weights [P], as a share of the pairs."""
        exact = weights.detach().double()
        self._weights[name] = (exact.sum(), exact.square().sum(), weights.numel())

    def statistics(self) -> Statistics:
        tensors = [total for total, _ in self._totals.values()]
        tensors += self._maxima.values()
        tensors += [each for total, squares, _ in self._weights.values() for each in (total, squares)]
        numbers = iter(torch.stack(tensors).tolist() if tensors else [])
        result = Statistics()
        for name, (_, count) in self._totals.items():
            result.add(name, next(numbers), count)
        for name in self._maxima:
            result.maximum(name, next(numbers))
        for name, (_, _, count) in self._weights.items():
            result.weigh(name, next(numbers), next(numbers), count)
        return result
