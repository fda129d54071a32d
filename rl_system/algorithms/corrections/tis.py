import torch

from rl_system.algorithms.correction import correction
from rl_system.algorithms.metering import Meter
from rl_system.config.algorithm import AlgorithmConfig


@correction()
def tis(log_ratio: torch.Tensor, sequence: torch.Tensor, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """Truncated importance weights (as in IMPALA, arXiv 1802.01561): `min(π_prox / π_behave, behaviour_cap)`."""
    ratio = log_ratio.exp()
    if config.behaviour_cap is None:
        return ratio
    meter.mean("off_policy/capped_fraction", ratio > config.behaviour_cap)
    return ratio.clamp(max=config.behaviour_cap)
