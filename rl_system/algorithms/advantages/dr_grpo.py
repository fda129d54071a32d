import numpy as np

from rl_system.algorithms.estimator import estimator


@estimator(compares=True)
def dr_grpo(rewards: np.ndarray) -> np.ndarray:
    """Dr. GRPO (arXiv 2503.20783, section 3.2): `r − mean(r)`. Without the deviation, very easy and very hard tasks
    do not count for more. The paper's loss also wants the aggregation `constant`, which has no bias by length.
    """
    return rewards - rewards.mean()
