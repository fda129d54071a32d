import torch

from rl_system.algorithms.clipping import clipped_surrogate
from rl_system.algorithms.metering import Meter
from rl_system.algorithms.surrogate import Tokens, surrogate
from rl_system.config.algorithm import AlgorithmConfig


@surrogate(anchor="behaviour")
def ppo_clip(tokens: Tokens, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """PPO (arXiv 1707.06347, eq. 7): `−min(r·A, clip(r)·A)` with `r = π_θ / π_behave`.

    The trust region is drawn around the policy that sampled. Stale tokens start outside it and are clipped away.
    """
    return clipped_surrogate(tokens.log_ratio().exp(), tokens.advantages, config, meter)
