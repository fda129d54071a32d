import torch

from rl_system.algorithms.correction import correction
from rl_system.algorithms.metering import Meter
from rl_system.config.algorithm import AlgorithmConfig


@correction()
def none(log_ratio: torch.Tensor, sequence: torch.Tensor, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """Every token counts as if the proximal policy had sampled it."""
    return torch.ones_like(log_ratio)
