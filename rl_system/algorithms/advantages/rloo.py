import numpy as np

from rl_system.algorithms.estimator import estimator


@estimator(compares=True)
def rloo(rewards: np.ndarray) -> np.ndarray:
    """RLOO (arXiv 2402.14740, eq. 8): `r_i − mean of the other members' r`, an unbiased baseline."""
    n = len(rewards)
    return (rewards - rewards.mean()) * n / (n - 1)
