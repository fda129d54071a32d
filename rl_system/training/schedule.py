"""The learning rate as a pure function of the number of updates done."""

from __future__ import annotations

import math

from rl_system.config.optimizer import OptimizerConfig


def learning_rate(config: OptimizerConfig, update: int, updates: int) -> float:
    """Learning rate of update `update` (0, 1, …) of `updates`.

    Rises linearly over the first `warmup_steps` updates and reaches its peak with the last of them; then falls to
    `min_learning_rate_ratio` of the peak, which the last update has. Beyond the last update it stays there.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if update < warmup:
        return peak * (update + 1) / warmup
    if config.decay == "constant":
        return peak
    progress = min(1.0, (update - warmup) / max(1, updates - 1 - warmup))
    remaining = 1 - progress if config.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
    floor = config.min_learning_rate_ratio
    return peak * (floor + (1 - floor) * remaining)
