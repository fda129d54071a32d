"""Flash attention for CUDA in its variable-length form: all calls of a level are one launch.

Queries, keys and values of the calls are packed to [rows, heads, head size] with int32 offsets; `lse` comes back as
[heads, rows] in float32. Half precision only; other dtypes go to the written-out kernel, which is there for tests.
"""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rl_system.executor.attention.flash_attn_package import Unusable, check_results, distribution, find_interface
from rl_system.executor.attention.kernels import BackwardInputs, Inputs, Kernel, ReferenceKernel

logger = logging.getLogger(__name__)

HALF = (torch.bfloat16, torch.float16)


@functools.cache
def kernel_for_cuda(dtype: torch.dtype, device: torch.device) -> Kernel:
    """The flash-attn package's kernel where that works on `device`, else torch's own build of the same algorithm.

    A package that is there and cannot be used is told of in a warning.
    """
    if dtype not in HALF:
        return ReferenceKernel()
    try:
        kernel = FlashAttnKernel(find_interface())
        check_results(kernel, device, dtype)
    except Unusable as reason:
        if reason.installed:
            logger.warning("flash-attn %s; torch's own flash attention serves", reason)
        return TorchFlashKernel()
    return kernel


def describe_cuda_kernels() -> str:
    """Which kernels this machine's packages offer for CUDA in half precision, in words; no device is needed or asked."""
    try:
        find_interface()
    except Unusable as reason:
        return f"torch's own flash attention (flash-attn {reason})"
    return distribution()


@dataclass(frozen=True, slots=True)
class _Packing:
    """Rows of every call on one side, and what the operators want to know of them."""

    lengths: list[int]
    offsets: Tensor

    @classmethod
    def of(cls, pieces: list[Tensor]) -> _Packing:
        lengths = [piece.shape[2] for piece in pieces]
        # From pinned memory and without waiting: the launches before need not have ended.
        offsets = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        device = pieces[0].device
        if device.type == "cuda":
            offsets = offsets.pin_memory().to(device, non_blocking=True)
        return cls(lengths, offsets)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def split(self, packed: Tensor) -> list[Tensor]:
        """[rows, heads, head size] to a [1, heads, rows, head size] view for every call."""
        return [part.transpose(0, 1)[None] for part in packed.split(self.lengths)]


class _VariableLengthKernel(ABC):
    causal_rows = None

    def forward(self, calls: Iterable[Inputs], causal: bool, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
        q, k, v = (list(pieces) for pieces in zip(*calls, strict=True))
        queries, keys = _Packing.of(q), _Packing.of(k)
        out, lse = self._forward(*map(_pack, (q, k, v)), queries, keys, causal, scale)
        by_call = (part[None] for part in lse.split(queries.lengths, dim=1))
        return zip(queries.split(out), by_call, strict=True)

    def backward(
        self, calls: Iterable[BackwardInputs], causal: bool, scale: float
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        grad_out, q, k, v, out, lse = (list(pieces) for pieces in zip(*calls, strict=True))
        queries, keys = _Packing.of(q), _Packing.of(k)
        packed_lse = torch.cat([each[0] for each in lse], dim=1).contiguous()
        grad_q, grad_k, grad_v = self._backward(
            *map(_pack, (grad_out, q, k, v, out)), packed_lse, queries, keys, causal, scale
        )
        return zip(queries.split(grad_q), keys.split(grad_k), keys.split(grad_v), strict=True)

    @abstractmethod
    def _forward(
        self, q: Tensor, k: Tensor, v: Tensor, queries: _Packing, keys: _Packing, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        """out and lse of packed calls."""

    @abstractmethod
    def _backward(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        queries: _Packing,
        keys: _Packing,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Packed gradients of q, k and v."""


class TorchFlashKernel(_VariableLengthKernel):
    """operators: where `_flash_attention_forward` and `_flash_attention_backward` are looked up."""

    def __init__(self, operators: Any = torch.ops.aten) -> None:
        self.operators = operators

    def _forward(self, q, k, v, queries, keys, causal, scale):
        sizes = (queries.offsets, keys.offsets, queries.longest, keys.longest)
        out, lse, *_ = self.operators._flash_attention_forward(q, k, v, *sizes, 0.0, causal, False, scale=scale)
        return out, lse

    def _backward(self, grad_out, q, k, v, out, lse, queries, keys, causal, scale):
        sizes = (queries.offsets, keys.offsets, queries.longest, keys.longest)
        # Without dropout the random state is not read.
        unused = torch.zeros((), dtype=torch.int64, device=q.device)
        return self.operators._flash_attention_backward(
            grad_out, q, k, v, out, lse, *sizes, 0.0, causal, unused, unused, scale=scale
        )


class FlashAttnKernel(_VariableLengthKernel):
    """interface: the module `flash_attn.flash_attn_interface`, version 2.8 or later."""

    def __init__(self, interface: Any) -> None:
        self.interface = interface

    def _forward(self, q, k, v, queries, keys, causal, scale):
        out, lse, *_ = self.interface._flash_attn_varlen_forward(
            q, k, v, **_sizes(queries, keys), dropout_p=0.0, softmax_scale=scale, causal=causal
        )
        return out, lse

    def _backward(self, grad_out, q, k, v, out, lse, queries, keys, causal, scale):
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        self.interface._flash_attn_varlen_backward(
            grad_out,
            q,
            k,
            v,
            out,
            lse,
            *grads,
            **_sizes(queries, keys),
            dropout_p=0.0,
            softmax_scale=scale,
            causal=causal,
            window_size_left=-1,
            window_size_right=-1,
            softcap=0.0,
            alibi_slopes=None,
            deterministic=False,
        )
        return grads


def _sizes(queries: _Packing, keys: _Packing) -> dict[str, Any]:
    return {
        "cu_seqlens_q": queries.offsets,
        "cu_seqlens_k": keys.offsets,
        "max_seqlen_q": queries.longest,
        "max_seqlen_k": keys.longest,
    }


def _pack(pieces: list[Tensor]) -> Tensor:
    """[1, heads, rows, head size] of every call to one contiguous [rows, heads, head size]."""
    rows = [piece[0].transpose(0, 1) for piece in pieces]
    return rows[0].contiguous() if len(rows) == 1 else torch.cat(rows)
