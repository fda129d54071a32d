"""What an attention kernel must do for merged calls, and the two that run anywhere.

A kernel is given the calls of one level at once, each as a tuple of tensors [1, heads, rows, head size] with any strides
but the last; keys and values may have fewer heads (grouped queries), never expanded. `lse` is the natural log-sum-exp of
the scaled scores, [1, heads, rows], float32 or float64.

`backward` is given the *merged* output and lse of all calls of these queries; the gradients of the calls then add up
to those of the whole, because a probability is exp(score − lse) whatever call it was computed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

Inputs = tuple[Tensor, Tensor, Tensor]
"""q, k, v of a call."""
BackwardInputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""grad_out, q, k, v, out, lse of a call."""


class Kernel(Protocol):
    """causal_rows: longest causal call that is faster than shorter ones with plain calls beside them; None for any."""

    causal_rows: int | None

    def forward(self, calls: Iterable[Inputs], causal: bool, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
        """out and lse of every call. causal: as many queries as keys, query `i` sees keys up to `i`; else it sees all."""
        ...

    def backward(
        self, calls: Iterable[BackwardInputs], causal: bool, scale: float
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Gradients of q, k and v through every call."""
        ...


class CpuFlashKernel:
    """torch's flash attention for CPU: float64, float32, bfloat16. One call after the other, while its rows are in cache.

    A causal call computes most of the square, at half the speed of a plain call.
    """

    causal_rows = 128

    def forward(self, calls: Iterable[Inputs], causal: bool, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        for q, k, v in calls:
            yield operator(q, k, v, 0.0, causal, scale=scale)

    def backward(
        self, calls: Iterable[BackwardInputs], causal: bool, scale: float
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        for call in calls:
            yield operator(*call, 0.0, causal, scale=scale)


class ReferenceKernel:
    """The definition, written out: what the others are tested against."""

    causal_rows = None

    def forward(self, calls: Iterable[Inputs], causal: bool, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
        for q, k, v in calls:
            scores = self._scores(q, k, causal, scale)
            lse = scores.logsumexp(-1)
            yield torch.exp(scores - lse[..., None]) @ _per_query_head(v, q), lse

    def backward(
        self, calls: Iterable[BackwardInputs], causal: bool, scale: float
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for grad_out, q, k, v, out, lse in calls:
            keys, values = _per_query_head(k, q), _per_query_head(v, q)
            p = torch.exp(self._scores(q, k, causal, scale) - lse[..., None])
            row = (grad_out * out).sum(-1, keepdim=True)
            grad_scores = p * (grad_out @ values.transpose(-1, -2) - row) * scale
            grad_k = (grad_scores.transpose(-1, -2) @ q).unflatten(1, (k.shape[1], -1)).sum(2)
            grad_v = (p.transpose(-1, -2) @ grad_out).unflatten(1, (k.shape[1], -1)).sum(2)
            yield grad_scores @ keys, grad_k, grad_v

    def _scores(self, q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
        scores = q @ _per_query_head(k, q).transpose(-1, -2) * scale
        if not causal:
            return scores
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        return scores.masked_fill(~visible, float("-inf"))


def _per_query_head(k: Tensor, q: Tensor) -> Tensor:
    return k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
