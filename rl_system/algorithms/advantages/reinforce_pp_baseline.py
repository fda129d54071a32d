import numpy as np

from rl_system.algorithms.estimator import estimator


@estimator(compares=True, normalise_batch=True)
def reinforce_pp_baseline(rewards: np.ndarray) -> np.ndarray:
    """REINFORCE++ with a group baseline (arXiv 2501.03262, section 3): `r − mean(r)`, scaled by the whole step."""
    return rewards - rewards.mean()
