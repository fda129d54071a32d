import torch

from rl_system.algorithms.correction import correction
from rl_system.algorithms.metering import Meter
from rl_system.config.algorithm import AlgorithmConfig


@correction()
def icepop(log_ratio: torch.Tensor, sequence: torch.Tensor, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """IcePop (Ring-1T, arXiv 2510.18855; INTELLECT-3, arXiv 2512.16144, eq. 1): the ratio where it lies in
    [behaviour_floor, behaviour_cap], else 0. Tokens on which the two policies disagree are left out, not cut to size.
    """
    ratio = log_ratio.exp()
    below = ratio < config.behaviour_floor
    above = torch.zeros_like(below) if config.behaviour_cap is None else ratio > config.behaviour_cap
    meter.mean("off_policy/below_floor_fraction", below)
    meter.mean("off_policy/capped_fraction", above)
    return torch.where(below | above, 0.0, ratio)
