"""torch's built-in flash attention for CUDA, in its variable-length form: one segment of queries and one of keys a call.

The form takes [rows, heads, head size] and int32 offsets, and returns `lse` as [heads, rows] in float32. Half precision
only; other dtypes go to the written-out kernel, which is there for tests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_system.executor.attention.kernels import Kernel, ReferenceKernel

HALF = (torch.bfloat16, torch.float16)


class CudaFlashKernel:
    """operators: where `_flash_attention_forward` and `_flash_attention_backward` are looked up."""

    causal_rows = None

    def __init__(self, operators: Any = torch.ops.aten) -> None:
        self.operators = operators

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        rows, keys = q.shape[2], k.shape[2]
        out, lse, *_ = self.operators._flash_attention_forward(
            *map(_packed, (q, k, v)), _offsets(rows, q), _offsets(keys, q), rows, keys, 0.0, causal, False, scale=scale
        )
        return out.transpose(0, 1)[None], lse[None]

    def backward(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, keys = q.shape[2], k.shape[2]
        # Without dropout the random state is not read.
        unused = torch.zeros((), dtype=torch.int64, device=q.device)
        grads = self.operators._flash_attention_backward(
            *map(_packed, (grad_out, q, k, v, out)),
            lse[0].contiguous(),
            _offsets(rows, q),
            _offsets(keys, q),
            rows,
            keys,
            0.0,
            causal,
            unused,
            unused,
            scale=scale,
        )
        return tuple(each.transpose(0, 1)[None] for each in grads)


def kernel_for_cuda(dtype: torch.dtype) -> Kernel:
    return CudaFlashKernel() if dtype in HALF else ReferenceKernel()


def _packed(x: Tensor) -> Tensor:
    return x[0].transpose(0, 1).contiguous()


def _offsets(rows: int, like: Tensor) -> Tensor:
    return torch.tensor([0, rows], dtype=torch.int32, device=like.device)
