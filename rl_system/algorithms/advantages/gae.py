import numpy as np

from rl_system.algorithms.estimator import estimator


@estimator(compares=False, normalise_batch=True, critic=True)
def gae(rewards: np.ndarray) -> np.ndarray:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16): the return itself, from which the trainers subtract
    what a critic expected (`rl_system.algorithms.gae`); then scaled by the whole step, as is usual in PPO
    (arXiv 2006.05990).
    """
    return rewards.copy()
