"""From hidden states to logprobs (or values) and back, a chunk of rows at a time.

A `[rows, vocabulary]` matrix of all rows never exists, and nothing is computed twice: while a chunk's logits are at
hand the loss says how it depends on the chunk's logprobs, and the gradients of the hidden states and of the output
matrix are taken at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from rl_system.executor.gradients import GradientBuffers
from rl_system.executor.products import pieces, product

Sensitivity = Callable[[slice, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""(rows, outputs, entropies) to d(loss)/d(outputs) and d(loss)/d(entropies), the latter None where it is zero."""


@dataclass(frozen=True, slots=True)
class HeadResult:
    """outputs and entropies as of `Head`; grad_hidden: d(loss)/d(hidden), like the hidden states."""

    outputs: Tensor
    entropies: Tensor | None
    grad_hidden: Tensor


class Head(Protocol):
    """outputs: float32 (float64 for float64 models) [rows]; entropies likewise, in nats, or None if not asked for."""

    def forward(self, hidden: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """hidden [rows, hidden size], targets int64 [rows]; without graph."""
        ...

    def backward(
        self, hidden: Tensor, targets: Tensor, entropy: bool, sensitivity: Sensitivity
    ) -> HeadResult:
        """As forward, and the gradients; those of the head's own parameters are added to their buffers."""
        ...


class LogprobHead:
    """Logprob of each row's target under softmax(hidden · Wᵀ / temperature), and the entropy of that distribution.

    With p the distribution and H its entropy: d logprob / d logits = onehot(target) − p, d H / d logits = −p (log p + H).
    """

    def __init__(self, weight: nn.Parameter, gradients: GradientBuffers, temperature: float, chunk: int) -> None:
        self.weight, self.gradients, self.temperature, self.chunk = weight, gradients, temperature, chunk

    @torch.no_grad()
    def forward(self, hidden: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        outputs, entropies = _results(hidden, entropy)
        for rows in pieces(len(hidden), self.chunk):
            logits = self._logits(hidden[rows])
            logp = torch.log_softmax(logits, -1)
            outputs[rows] = _pick(logp, targets[rows])
            if entropies is not None:
                entropies[rows] = _entropy(torch.exp(logp, out=logits), logp)
        return outputs, entropies

    @torch.no_grad()
    def backward(
        self, hidden: Tensor, targets: Tensor, entropy: bool, sensitivity: Sensitivity
    ) -> HeadResult:
        outputs, entropies = _results(hidden, entropy)
        grad_hidden = torch.empty_like(hidden)
        for rows in pieces(len(hidden), self.chunk):
            logits = self._logits(hidden[rows])
            logp = torch.log_softmax(logits, -1)
            outputs[rows] = _pick(logp, targets[rows])
            p = torch.exp(logp, out=logits)
            if entropies is not None:
                entropies[rows] = _entropy(p, logp)
            by_output, by_entropy = sensitivity(rows, outputs[rows], None if entropies is None else entropies[rows])
            if by_entropy is None:
                grad = p.mul_(-by_output[:, None])
            else:
                weight = by_entropy[:, None] * (logp + entropies[rows, None]) + by_output[:, None]
                grad = p.mul_(weight).neg_()
            grad[torch.arange(len(grad), device=grad.device), targets[rows]] += by_output
            if self.temperature != 1.0:
                grad /= self.temperature
            grad = grad.to(hidden.dtype)
            grad_hidden[rows] = product(grad, self.weight.T)
            self.gradients.add_product(self.weight, grad, hidden[rows])
        return HeadResult(outputs, entropies, grad_hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        """In float32 at least, and divided by the temperature."""
        logits = product(hidden, self.weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)


class ModuleHead:
    """One scalar a row from a module, for critics: `module` maps [rows, hidden size] to [rows, 1]."""

    def __init__(self, module: nn.Module, chunk: int) -> None:
        self.module, self.chunk = module, chunk
        self.dtype = next(module.parameters()).dtype

    @torch.no_grad()
    def forward(self, hidden: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, None]:
        outputs, _ = _results(hidden, False)
        for rows in pieces(len(hidden), self.chunk):
            outputs[rows] = self._values(hidden[rows]).to(outputs.dtype)
        return outputs, None

    def backward(
        self, hidden: Tensor, targets: Tensor, entropy: bool, sensitivity: Sensitivity
    ) -> HeadResult:
        outputs, _ = _results(hidden, False)
        grad_hidden = torch.empty_like(hidden)
        for rows in pieces(len(hidden), self.chunk):
            leaf = hidden[rows].detach().requires_grad_()
            with torch.enable_grad():
                values = self._values(leaf)
            outputs[rows] = values.detach().to(outputs.dtype)
            by_output, _ = sensitivity(rows, outputs[rows], None)
            values.backward(by_output.to(values.dtype))
            grad_hidden[rows] = leaf.grad
        return HeadResult(outputs, None, grad_hidden)

    def _values(self, hidden: Tensor) -> Tensor:
        return self.module(hidden.to(self.dtype)).squeeze(-1)


def _results(hidden: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    outputs = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
    return outputs, torch.empty_like(outputs) if entropy else None


def _pick(logp: Tensor, targets: Tensor) -> Tensor:
    return logp.gather(1, targets[:, None])[:, 0]


def _entropy(p: Tensor, logp: Tensor) -> Tensor:
    """−Σ p log p of each row, without a matrix of the products."""
    return torch.bmm(p[:, None], logp[:, :, None]).flatten().neg_()
