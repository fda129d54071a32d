import torch

from rl_system.algorithms.clipping import clipped_surrogate
from rl_system.algorithms.metering import Meter
from rl_system.algorithms.surrogate import Tokens, surrogate
from rl_system.config.algorithm import AlgorithmConfig


@surrogate(anchor="proximal")
def decoupled_ppo(tokens: Tokens, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """Decoupled PPO (arXiv 2110.00641, eq. 6; for language models arXiv 2505.24298, eq. 5).

    `−w · min(r·A, clip(r)·A)` with `r = π_θ / π_prox`, and the correction `w` of `π_prox / π_behave` applied around
    it: the trust region is drawn around the policy at the start of the update, so stale tokens keep teaching.
    """
    return clipped_surrogate(tokens.log_ratio().exp(), tokens.advantages, config, meter)
