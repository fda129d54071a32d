import torch

from rl_system.algorithms.metering import Meter
from rl_system.algorithms.surrogate import Tokens, surrogate
from rl_system.config.algorithm import AlgorithmConfig


@surrogate(anchor=None)
def sft(tokens: Tokens, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """Supervised fine-tuning: `−log π_θ`, the negative log-likelihood of the demonstration. Advantages play no part."""
    return -tokens.logprobs
