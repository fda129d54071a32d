"""Which turn of an episode earned what."""

from __future__ import annotations

import numpy as np

from rl_system.config.algorithm import AlgorithmConfig


def turn_advantages(advantage: float, turns: int, config: AlgorithmConfig) -> np.ndarray:
    """float64 [turns]: what is earned from each turn on, `Σ_{j ≥ k} turn_discount^(j − k) · earned_j`.

    credit `last`: `earned` is the advantage at the last turn and 0 before; `spread`: an equal part of it at every
    turn. With `last` and no discount every turn carries the whole advantage, which is the usual episode-level credit.
    """
    earned = np.zeros(turns)
    if config.credit == "spread":
        earned[:] = advantage / max(turns, 1)
    elif turns:
        earned[-1] = advantage
    for k in range(turns - 2, -1, -1):
        earned[k] += config.turn_discount * earned[k + 1]
    return earned
