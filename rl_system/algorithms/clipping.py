"""The clipped surrogate that the PPO family shares."""

from __future__ import annotations

import torch

from rl_system.algorithms.metering import Meter
from rl_system.config.algorithm import AlgorithmConfig


def clipped_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, config: AlgorithmConfig, meter: Meter
) -> torch.Tensor:
    """`−min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A)`, and at most `−dual_clip·A` where `A < 0`. Tensors [P].

    PPO (arXiv 1707.06347, eq. 7); asymmetric bounds: clip-higher of DAPO (arXiv 2503.14476, eq. 10); dual clip:
    arXiv 1912.09729, eq. 5, which bounds the loss of a bad action that has become much likelier.
    """
    free = -ratio * advantages
    clipped = -ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages
    loss = torch.maximum(free, clipped)
    meter.mean("train/clip_fraction", clipped > free)
    if config.dual_clip is not None:
        bound = -config.dual_clip * advantages
        dual = (advantages < 0) & (loss > bound)
        loss = torch.where(dual, bound, loss)
        meter.mean("train/dual_clip_fraction", dual)
    return loss
