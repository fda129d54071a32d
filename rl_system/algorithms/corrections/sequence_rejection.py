import torch

from rl_system.algorithms.correction import correction
from rl_system.algorithms.corrections.tis import tis
from rl_system.algorithms.metering import Meter
from rl_system.algorithms.surrogate import sequence_mean
from rl_system.config.algorithm import AlgorithmConfig


@correction(coupled=True)
def sequence_rejection(
    log_ratio: torch.Tensor, sequence: torch.Tensor, config: AlgorithmConfig, meter: Meter
) -> torch.Tensor:
    """Rejection of whole sequences by the geometric mean of their ratios, `exp(mean_t log(π_prox / π_behave))`.

    A sequence outside [sequence_ratio_low, sequence_ratio_high] is masked; the tokens of the others keep their
    truncated ratio (`tis`). The geometric mean does not grow with length, as the product would (the sequence
    likelihood of GSPO, arXiv 2507.18071, eq. 7; masking by it: sequence-level masked importance sampling).
    """
    mean = sequence_mean(log_ratio, sequence).exp()
    rejected = (mean < config.sequence_ratio_low) | (mean > config.sequence_ratio_high)
    meter.mean("off_policy/rejected_fraction", rejected)
    meter.maximum("off_policy/sequence_ratio_max", mean)
    return torch.where(rejected, 0.0, tis(log_ratio, sequence, config, meter))
