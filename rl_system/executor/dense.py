"""The reference: every sequence alone through the model, as plain training would. Nothing is shared.

Deliberately independent of trees and merged attention (transformers' own modules and `sdpa`), because it is what they
are compared with. The head is the common one: only trained rows, in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl_system.algorithms.objective import Objective
from rl_system.executor.gradients import GradientBuffers
from rl_system.executor.head import Head
from rl_system.executor.interface import ExecutionReport, StepResult
from rl_system.executor.linears import fast_linears
from rl_system.executor.models import Started, attention
from rl_system.executor.pairs import Evaluation, Fixed, PairTable, sensitivity
from rl_system.executor.precision import full_precision
from rl_system.records import TrainBatch
from rl_system.tree.cost_model import CostModel, Work


@dataclass(frozen=True, slots=True)
class Piece:
    """One run of the model: tokens of the batch, positions (int64, from 0) of the targets among them, and the index of the
    first target in the table."""

    tokens: slice
    positions: np.ndarray
    first: int

    @property
    def targets(self) -> slice:
        return slice(self.first, self.first + len(self.positions))


class DenseExecutor:
    """recompute: keep layer inputs only and run each layer again in backward (activation checkpointing)."""

    method = "dense"
    whole_sequences = True
    """Every pair of a sequence belongs to one piece."""

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        cost_model: CostModel,
        buffers: GradientBuffers,
        *,
        recompute: bool = False,
    ) -> None:
        self.model, self.head, self.cost_model = model, head, cost_model
        self.buffers, self.gradients = buffers, buffers.by_name
        self.recompute = recompute

    def step(self, batch: TrainBatch, objective: Objective) -> StepResult:
        began = Started(self.model)
        table, pieces = self._pieces(batch)
        evaluation = Evaluation(objective, table)
        outputs = torch.zeros(table.count, dtype=self._dtype, device=self.model.device)
        fixed = None
        if objective.coupled and not self.whole_sequences:
            fixed = Fixed(*evaluation(0, *self._forward(batch, table, pieces, objective.needs_entropy)))
        with self._running(), self._checkpointing():
            for piece in pieces:
                hidden, wanted = self._run(batch, piece)
                leaf = hidden.detach()
                gradient, first = fixed or evaluation, piece.first
                if objective.coupled and self.whole_sequences:
                    known = self.head.forward(leaf, wanted, objective.needs_entropy)
                    gradient, first = Fixed(*evaluation(piece.first, *known)), 0
                result = self.head.backward(leaf, wanted, objective.needs_entropy, sensitivity(gradient, first))
                outputs[piece.targets] = result.outputs
                torch.autograd.backward(hidden, result.grad_hidden)
        seconds, worked = began.elapsed()
        method = f"{self.method}_ckpt" if self.recompute else self.method
        run = int(sum(piece.tokens.stop - piece.tokens.start for piece in pieces))
        self.cost_model.observe(method, self._work(pieces, table.count), worked)
        report = ExecutionReport(
            method=method,
            reason="as configured",
            blocks=len(pieces),
            sequence_tokens=batch.sequence_tokens,
            unique_tokens=batch.sequence_tokens,
            recomputed_tokens=run * (self.recompute + (fixed is not None)),
            peak_live_tokens=max((int(piece.tokens.stop - piece.tokens.start) for piece in pieces), default=0),
            seconds=seconds,
        )
        return StepResult(evaluation.loss, evaluation.statistics, table.flat(outputs), report)

    def logprobs(self, batch: TrainBatch) -> np.ndarray:
        table, pieces = self._pieces(batch)
        return table.flat(self._forward(batch, table, pieces, entropy=False)[0])

    def predicted_seconds(self, batch: TrainBatch) -> float:
        table, pieces = self._pieces(batch)
        return self.cost_model.seconds(self.method, self._work(pieces, table.count))

    @torch.no_grad()
    def _forward(
        self, batch: TrainBatch, table: PairTable, pieces: list[Piece], entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        outputs = torch.zeros(table.count, dtype=self._dtype, device=self.model.device)
        entropies = torch.zeros_like(outputs) if entropy else None
        with self._running():
            for piece in pieces:
                values, spread = self.head.forward(*self._run(batch, piece), entropy)
                outputs[piece.targets] = values
                if entropies is not None:
                    entropies[piece.targets] = spread
        return outputs, entropies

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.model.dtype, torch.float32)

    def _pieces(self, batch: TrainBatch) -> tuple[PairTable, list[Piece]]:
        """One target a trained token, in the batch's order; every sequence with anything to train."""
        tokens = np.flatnonzero(batch.trained)
        table = PairTable(batch, tokens, np.arange(len(tokens)), len(tokens), self.model.device, self._dtype)
        bounds = np.searchsorted(tokens, batch.offsets)
        pieces = [
            Piece(slice(start, stop), tokens[first:last] - start, int(first))
            for start, stop, first, last in zip(
                batch.offsets[:-1], batch.offsets[1:], bounds[:-1], bounds[1:], strict=True
            )
            if first < last
        ]
        return table, pieces

    def _run(self, batch: TrainBatch, piece: Piece) -> tuple[Tensor, Tensor]:
        """Hidden states of the rows that predict the piece's targets, and the targets' token ids."""
        device = self.model.device
        ids = torch.from_numpy(batch.token_ids[piece.tokens].astype(np.int64)).to(device)
        positions = torch.from_numpy(piece.positions).to(device)
        hidden = self.model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        return hidden[positions - 1], ids[positions]

    def _work(self, pieces: list[Piece], targets: int) -> Work:
        lengths = np.array([piece.tokens.stop - piece.tokens.start for piece in pieces], np.float64)
        return Work(lengths.sum(), (lengths * (lengths + 1) / 2).sum(), len(pieces), 0, targets)

    @contextmanager
    def _running(self) -> Iterator[None]:
        with attention(self.model, "sdpa"), fast_linears(self.model, self.buffers):
            yield

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        if not self.recompute:
            yield
            return
        training = self.model.training
        # What is run again in backward is outside the context of the forward, so it gets its own.
        settings = {"use_reentrant": False, "context_fn": lambda: (nullcontext(), full_precision(self.model.dtype))}
        self.model.gradient_checkpointing_enable(settings)
        self.model.train()
        try:
            yield
        finally:
            self.model.gradient_checkpointing_disable()
            self.model.train(training)
