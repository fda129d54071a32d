import torch

from rl_system.algorithms.metering import Meter
from rl_system.algorithms.surrogate import Tokens, surrogate
from rl_system.config.algorithm import AlgorithmConfig


@surrogate(anchor="proximal")
def reinforce(tokens: Tokens, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """REINFORCE (Williams 1992, eq. 4): `−A · log π_θ`, weighted by the correction of `π_prox / π_behave`; no trust
    region.
    """
    return -tokens.advantages * tokens.logprobs
