"""The reference: every sequence alone through the model, as plain training would. Nothing is shared.

Deliberately independent of trees and merged attention (transformers' own `sdpa`), because it is what they are compared
with. The head is the common one: only trained rows, in chunks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl_system.algorithms.objective import Objective
from rl_system.executor.head import Head
from rl_system.executor.interface import ExecutionReport, StepResult
from rl_system.executor.models import attention
from rl_system.executor.pairs import Evaluation, PairTable
from rl_system.records import TrainBatch


class DenseExecutor:
    """recompute: keep layer inputs only and run each layer again in backward (activation checkpointing)."""

    def __init__(self, model: PreTrainedModel, head: Head, *, recompute: bool = False) -> None:
        self.model, self.head, self.recompute = model, head, recompute

    def step(self, batch: TrainBatch, objective: Objective) -> StepResult:
        began = time.perf_counter()
        table = self._table(batch)
        evaluation = Evaluation(objective, table)
        outputs = torch.zeros(table.count, dtype=self._dtype, device=self.model.device)
        with attention(self.model, "sdpa"), self._checkpointing():
            for tokens, targets in self._sequences(batch):
                hidden, rows, wanted = self._run(batch, tokens, table, targets)
                leaf = hidden.detach()[rows]
                if objective.coupled:
                    result = self.head.forward(leaf, wanted, objective.needs_entropy)
                    whole = evaluation(targets.start, *result)
                else:
                    whole = None

                def sensitivity(chunk: slice, values: Tensor, entropies: Tensor | None, at=targets.start, whole=whole):
                    if whole is not None:
                        return whole[0][chunk], None if whole[1] is None else whole[1][chunk]
                    return evaluation(at + chunk.start, values, entropies)

                values, _, grad = self.head.backward(leaf, wanted, objective.needs_entropy, sensitivity)
                outputs[targets] = values
                hidden[rows].backward(grad)
        method = "dense_ckpt" if self.recompute else "dense"
        report = ExecutionReport(
            method=method,
            reason="as configured",
            blocks=len(batch),
            sequence_tokens=batch.sequence_tokens,
            unique_tokens=batch.sequence_tokens,
            recomputed_tokens=batch.sequence_tokens if self.recompute else 0,
            peak_live_tokens=int(batch.lengths().max(initial=0)),
            seconds=time.perf_counter() - began,
        )
        return StepResult(evaluation.loss, evaluation.statistics, table.flat(outputs), report)

    @torch.no_grad()
    def logprobs(self, batch: TrainBatch) -> np.ndarray:
        table = self._table(batch)
        outputs = torch.zeros(table.count, dtype=self._dtype, device=self.model.device)
        with attention(self.model, "sdpa"):
            for tokens, targets in self._sequences(batch):
                hidden, rows, wanted = self._run(batch, tokens, table, targets)
                outputs[targets], _ = self.head.forward(hidden[rows], wanted, entropy=False)
        return table.flat(outputs)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.model.dtype, torch.float32)

    def _table(self, batch: TrainBatch) -> PairTable:
        """One target a trained token, in the batch's order."""
        tokens = np.flatnonzero(batch.trained)
        return PairTable(batch, tokens, np.arange(len(tokens)), len(tokens), self.model.device, self._dtype)

    def _sequences(self, batch: TrainBatch) -> Iterator[tuple[slice, slice]]:
        """Tokens and targets of every sequence with anything to train."""
        before = np.concatenate([[0], np.cumsum(batch.trained)])
        for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
            if before[start] < before[stop]:
                yield slice(start, stop), slice(before[start], before[stop])

    def _run(self, batch: TrainBatch, tokens: slice, table: PairTable, targets: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states of one sequence, the rows that predict its targets, and the targets' token ids."""
        device = self.model.device
        ids = torch.from_numpy(batch.token_ids[tokens].astype(np.int64)).to(device)
        trained = torch.from_numpy(table.tokens[targets] - tokens.start).to(device)
        hidden = self.model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        return hidden, trained - 1, ids[trained]

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        if not self.recompute:
            yield
            return
        training = self.model.training
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.train()
        try:
            yield
        finally:
            self.model.gradient_checkpointing_disable()
            self.model.train(training)
