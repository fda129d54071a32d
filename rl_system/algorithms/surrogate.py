"""What a policy objective sees of a batch, and how it declares itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

MAX_LOG_RATIO = 20.0
"""Log ratios are cut here (a ratio of 4.9e8), so that a ratio is never infinite and a mask of 0 hides it."""

Anchor = Literal["behaviour", "proximal"]
Function = TypeVar("Function", bound=Callable)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The pairs of one call that carry weight. Tensors [P].

    logprobs: of the current policy, with graph; anchor_logprobs: of the policy that the ratio is taken to, without;
    advantages; sequence: int64, index of the sequence that a pair belongs to.
    """

    logprobs: torch.Tensor
    anchor_logprobs: torch.Tensor
    advantages: torch.Tensor
    sequence: torch.Tensor

    def log_ratio(self) -> torch.Tensor:
        """`log π_θ − log π_anchor` [P]."""
        return bounded(self.logprobs - self.anchor_logprobs)


def bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    """`log_ratio` within ±MAX_LOG_RATIO; NaN stays NaN, so that a broken logprob shows in the loss."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_mean(values: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """Mean of `values` [P] over the pairs of each sequence, given back to its pairs [P]. Differentiable.

    sequence: int64 [P], any numbering.
    """
    present, place = sequence.unique(return_inverse=True)
    sums = values.new_zeros(len(present)).index_add(0, place, values)
    counts = values.new_zeros(len(present)).index_add(0, place, torch.ones_like(values))
    return (sums / counts)[place]


def surrogate(*, anchor: Anchor | None, coupled: bool = False) -> Callable[[Function], Function]:
    """Declare an objective's loss function.

    anchor: the policy that its ratio is taken to; None where it has no ratio and no use for what the sampler thought.
    coupled: whether a pair's loss depends on the other pairs of its sequence.
    The function takes `(tokens: Tokens, config: AlgorithmConfig, meter: Meter)` and returns the loss of each pair [P].
    """

    def declare(function: Function) -> Function:
        function.anchor = anchor
        function.coupled = coupled
        return function

    return declare
