"""(sequence, token) pairs as tensors, and how a loss over them is evaluated on the outputs of shared rows.

A *target* is one output of the head: one predicting row and one token. A pair is a target seen from one sequence.
Pairs are sorted by target, so any run of targets owns one run of pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_system.algorithms.objective import Objective, Pairs
from rl_system.algorithms.statistics import Statistics
from rl_system.executor.head import Sensitivity
from rl_system.records import TrainBatch


class PairTable:
    """The trained tokens of a batch, in an order that an executor chose.

    tokens: int64 [P], positions in the batch's flat arrays, sorted by target. targets: int64 [P], ascending, the target of
    each pair, `0 … count − 1`.
    """

    def __init__(
        self, batch: TrainBatch, tokens: np.ndarray, targets: np.ndarray, count: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.tokens, self.count = tokens, count
        self.size = batch.sequence_tokens
        self.offsets = np.searchsorted(targets, np.arange(count + 1))
        self.targets = torch.from_numpy(targets).to(device)

        def gather(values: np.ndarray | None, kind: torch.dtype) -> Tensor | None:
            return None if values is None else torch.from_numpy(values[tokens]).to(device, kind)

        sequence = np.searchsorted(batch.offsets, tokens, side="right") - 1
        self.pairs = Pairs(
            sequence=torch.from_numpy(sequence).to(device),
            behaviour_logprobs=gather(batch.behaviour_logprobs, dtype),
            advantages=gather(batch.advantages, dtype),
            weights=gather(batch.weights, dtype),
            versions=gather(batch.versions, torch.int64),
            proximal_logprobs=gather(batch.proximal_logprobs, dtype),
            reference_logprobs=gather(batch.reference_logprobs, dtype),
            values=gather(batch.values, dtype),
            returns=gather(batch.returns, dtype),
        )

    def slice(self, first: int, last: int) -> tuple[Tensor, Pairs]:
        """Of targets [first, last): the target of each pair, counted from `first`, and the pairs."""
        rows = slice(self.offsets[first], self.offsets[last])
        fields = (getattr(self.pairs, name) for name in Pairs.__dataclass_fields__)
        return self.targets[rows] - first, Pairs(*(None if each is None else each[rows] for each in fields))

    def flat(self, outputs: Tensor) -> np.ndarray:
        """Outputs of all targets as an array over the batch's tokens, 0 where not trained."""
        values = outputs.cpu().numpy()
        result = np.zeros(self.size, values.dtype)
        result[self.tokens] = values[self.targets.cpu().numpy()]
        return result


class Evaluation:
    """An objective applied to targets as their outputs become known; loss and statistics add up."""

    def __init__(self, objective: Objective, table: PairTable) -> None:
        self.objective, self.table = objective, table
        self.loss = 0.0
        self.statistics = Statistics()

    def __call__(self, first: int, outputs: Tensor, entropies: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Gradients of the loss with respect to the outputs, and entropies, of targets `first` onwards."""
        index, pairs = self.table.slice(first, first + len(outputs))
        inputs = [outputs.detach().requires_grad_()]
        if entropies is not None:
            inputs.append(entropies.detach().requires_grad_())
        with torch.enable_grad():
            loss, statistics = self.objective(
                inputs[0][index], inputs[1][index] if entropies is not None else None, pairs
            )
            grads = torch.autograd.grad(loss, inputs, allow_unused=True) if loss.requires_grad else [None] * len(inputs)
        self.loss += float(loss.detach())
        self.statistics.merge(statistics)
        by_output = torch.zeros_like(outputs) if grads[0] is None else grads[0]
        return by_output, grads[1] if entropies is not None else None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Gradients with respect to outputs and entropies that are known beforehand, of targets from 0 on."""

    by_output: Tensor
    by_entropy: Tensor | None

    def __call__(self, first: int, outputs: Tensor, entropies: Tensor | None) -> tuple[Tensor, Tensor | None]:
        mine = slice(first, first + len(outputs))
        return self.by_output[mine], None if self.by_entropy is None else self.by_entropy[mine]


def sensitivity(gradient: Evaluation | Fixed, first: int) -> Sensitivity:
    """What a head asks for, of rows whose targets begin at `first`."""
    return lambda rows, outputs, entropies: gradient(first + rows.start, outputs, entropies)
