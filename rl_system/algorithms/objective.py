"""What an objective is: a loss over (sequence, token) pairs, whatever executor computes their logprobs.

A prefix tree computes one logprob for a token that many sequences share; advantages, behaviour logprobs and weights
still differ by sequence. So an objective sees *pairs*: every trained token of every sequence, once per sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from rl_system.algorithms.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Pairs:
    """What the batch says about `P` (sequence, token) pairs; tensors of shape [P] on the model's device.

    sequence: int64, index of the sequence in the batch. The others have the compute dtype (float32 or float64) but
    `versions` (int64). Optional fields are None where the batch does not carry them.
    """

    sequence: torch.Tensor
    behaviour_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    versions: torch.Tensor
    proximal_logprobs: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    returns: torch.Tensor | None = None


class Objective(Protocol):
    """Loss of a set of pairs.

    coupled: False when the loss of a pair depends on that pair alone, so that it may be evaluated on any subset and
    the results added (token-separable); True when it needs all pairs of a sequence at once (sequence-coupled).
    needs_entropy: whether `entropies` must be given.
    """

    coupled: bool
    needs_entropy: bool

    def __call__(
        self, outputs: torch.Tensor, entropies: torch.Tensor | None, pairs: Pairs
    ) -> tuple[torch.Tensor, Statistics]:
        """Loss of `pairs`: the sum over pairs of weight times loss, a scalar that carries gradient to `outputs` [P].

        outputs: current logprobs in nats (for a critic's objective: values). entropies: [P] in nats, or None.
        """
        ...
