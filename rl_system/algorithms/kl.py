"""The KL divergence from a reference policy, estimated from sampled tokens.

With `Δ = log π − log π_ref` at a token that π sampled (Schulman, "Approximating KL divergence", 2020): k1 = Δ,
unbiased, of either sign; k2 = Δ²/2, biased, whose gradient is that of the divergence; k3 = exp(−Δ) − 1 + Δ, unbiased
and never negative.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from rl_system.algorithms.metering import Meter
from rl_system.algorithms.objective import Pairs
from rl_system.algorithms.surrogate import bounded
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.records import TrainBatch


def needs_reference(config: AlgorithmConfig) -> bool:
    """Whether batches must carry reference logprobs."""
    return config.kl_coefficient != 0


def estimate_kl(delta: torch.Tensor, estimator: Literal["k1", "k2", "k3"]) -> torch.Tensor:
    """`estimator` of `delta`, `log π − log π_ref` [P], in nats; differentiable."""
    if estimator == "k1":
        return delta
    if estimator == "k2":
        return delta.square() / 2
    return (-delta).exp() - 1 + delta


def reference_kl(logprobs: torch.Tensor, pairs: Pairs, config: AlgorithmConfig, meter: Meter) -> torch.Tensor:
    """The loss term [P]; 0 where the divergence is in the reward, and then only measured."""
    if pairs.reference_logprobs is None:
        raise ValueError("algorithm.kl_coefficient is set: the batch must carry reference logprobs")
    kl = estimate_kl(bounded(logprobs - pairs.reference_logprobs), config.kl_estimator)
    meter.mean("train/reference_kl", kl)
    return kl if config.kl_in == "loss" else torch.zeros_like(kl)


def with_reference(batch: TrainBatch, reference_logprobs: np.ndarray, config: AlgorithmConfig) -> TrainBatch:
    """`batch` with reference logprobs [sequence_tokens] and, where the divergence is in the reward, advantages that
    pay for it.

    The reward of a token falls by `kl_coefficient · KL` between behaviour and reference policy there, and its
    advantage by that of itself and of all tokens sampled after it in its sequence: `A_t − β Σ_{i ≥ t} KL_i`
    (REINFORCE++, arXiv 2501.03262, eq. 5). A sequence is whole wherever a batch is cut, so this may be done on any
    part.
    """
    batch = replace(batch, reference_logprobs=reference_logprobs.astype(np.float32))
    if config.kl_in == "loss":
        return batch
    delta = np.where(batch.trained, batch.behaviour_logprobs - reference_logprobs, 0).astype(np.float64)
    kl = estimate_kl(bounded(torch.from_numpy(delta)), config.kl_estimator).numpy()
    to_go = _sums_to_go(np.where(batch.trained & (batch.weights != 0), kl, 0.0), batch.offsets)
    advantages = batch.advantages - config.kl_coefficient * np.where(batch.trained, to_go, 0)
    return replace(batch, advantages=advantages.astype(batch.advantages.dtype))


def _sums_to_go(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sum of `values` [n] from each position to the end of its sequence."""
    before = np.concatenate([[0.0], np.cumsum(values)])
    return np.repeat(before[offsets[1:]], np.diff(offsets)) - before[:-1]
