import torch

from rl_system.algorithms.clipping import clipped_surrogate
from rl_system.algorithms.metering import Meter
from rl_system.algorithms.surrogate import Tokens, sequence_mean, surrogate
from rl_system.config.algorithm import AlgorithmConfig


@surrogate(anchor="behaviour", coupled=True)
def gspo(tokens: Tokens, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """GSPO (arXiv 2507.18071, eq. 5-7): PPO's clip on one ratio a sequence, `s = exp(mean_t log(π_θ / π_behave))`.

    The mean runs over all sampled tokens of the sequence. Ratios lie much closer to 1 than those of tokens: the paper
    clips at 3e-4 below and 4e-4 above. With the aggregation `sequence_mean` this is the paper's loss.
    """
    ratio = sequence_mean(tokens.log_ratio(), tokens.sequence).exp()
    return clipped_surrogate(ratio, tokens.advantages, config, meter)
