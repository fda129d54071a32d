import numpy as np

from rl_system.algorithms.estimator import estimator

EPSILON = 1e-6
"""Keeps the quotient finite where rewards nearly agree."""


@estimator(compares=True)
def grpo(rewards: np.ndarray) -> np.ndarray:
    """GRPO (arXiv 2402.03300, section 4.1.2): `(r − mean(r)) / (std(r) + ε)`, sample deviation (n − 1), ε = 1e-6."""
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON)
