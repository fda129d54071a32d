"""The proximal policy: the one at the start of a batch's updates, which the trust region is drawn around."""

from __future__ import annotations

import torch

from rl_system.algorithms.objective import Pairs
from rl_system.config.algorithm import AlgorithmConfig


def needs_proximal_pass(config: AlgorithmConfig) -> bool:
    """Whether the trainer must recompute logprobs before the first update of a batch.

    With one update a batch the current policy is the proximal one, and its logprobs come out of the update itself.
    """
    return config.proximal == "exact" and config.updates_per_batch > 1


def proximal_logprobs(
    current: torch.Tensor, pairs: Pairs, config: AlgorithmConfig, version: int | None
) -> torch.Tensor:
    """Proximal logprobs [P], without graph. current: the current policy's, detached; version: of that policy.

    exact: those that the batch carries, else the current ones. loglinear (A-3PO, arXiv 2512.06547): `log π_prox =
    α·log π_behave + (1 − α)·log π_θ` with `α = 1/d` for a token `d ≥ 1` versions old and 0 for a fresh one.
    """
    if config.proximal == "exact":
        return current if pairs.proximal_logprobs is None else pairs.proximal_logprobs
    if version is None:
        raise ValueError("proximal 'loglinear' depends on staleness: make_objective needs the policy version")
    staleness = version - pairs.versions
    alpha = torch.where(staleness > 0, 1 / staleness.clamp(min=1).to(current.dtype), 0.0)
    return alpha * pairs.behaviour_logprobs + (1 - alpha) * current
