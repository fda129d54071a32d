import torch

from rl_system.algorithms.metering import Meter
from rl_system.algorithms.surrogate import Tokens, surrogate
from rl_system.config.algorithm import AlgorithmConfig


@surrogate(anchor="behaviour")
def cispo(tokens: Tokens, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4): `−sg(clip(r, 1 − clip_low, 1 + clip_high)) · A · log π_θ`.

    The importance weight is clipped, not the update: rare tokens that PPO's clip would silence keep their gradient.
    The paper leaves the lower side open (clip_low close to 1).
    """
    ratio = tokens.log_ratio().detach().exp()
    weight = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    meter.mean("train/clip_fraction", weight != ratio)
    return -weight * tokens.advantages * tokens.logprobs
