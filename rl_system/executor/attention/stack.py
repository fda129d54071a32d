"""Keys and values of the path from the root to the running block, and their gradients.

Row `d` holds the token at depth `d` of the current path. Allocated once, written in place: nothing is concatenated and
no prefix is copied. Gradients of descendants add up in float32 (float64 for float64 models) whatever the model's dtype.

Invariant: gradient rows that belong to no block under way are zero.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PathStack:
    """Sizes are taken from the first keys written, so that a model sharded over heads gets stacks of its own share."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._kv: Tensor | None = None
        self._grads: Tensor | None = None

    def reserve(self, rows: int) -> None:
        """Room for `rows` rows; what is there is lost when it grows."""
        if self._kv is not None and self._kv.shape[2] < rows:
            self._kv = self._grads = None
        self._rows = rows

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> None:
        """Put k and v, [1, kv heads, rows, head size], at rows `at` onwards."""
        if self._kv is None:
            self._kv = k.new_empty((self.layers, 2, self._rows, k.shape[1], k.shape[3]))
        rows = slice(at, at + k.shape[2])
        self._kv[layer, 0, rows].copy_(k[0].transpose(0, 1))
        self._kv[layer, 1, rows].copy_(v[0].transpose(0, 1))

    def read(self, layer: int, k0: int, k1: int) -> tuple[Tensor, Tensor]:
        """Keys and values of rows [k0, k1) as [1, kv heads, rows, head size] views."""
        k, v = self._kv[layer, :, k0:k1].transpose(1, 2)
        return k[None], v[None]

    def add_gradients(self, layer: int, k0: int, k1: int, grad_k: Tensor, grad_v: Tensor) -> None:
        if self._grads is None:
            dtype = torch.promote_types(self._kv.dtype, torch.float32)
            self._grads = torch.zeros_like(self._kv, dtype=dtype)
        self._grads[layer, 0, k0:k1] += grad_k[0].transpose(0, 1)
        self._grads[layer, 1, k0:k1] += grad_v[0].transpose(0, 1)

    def take_gradients(self, k0: int, k1: int) -> Tensor | None:
        """Gradients of rows [k0, k1) of all layers, [layers, 2, rows, kv heads, head size], and clear them."""
        if self._grads is None:
            return None
        rows = self._grads[:, :, k0:k1]
        taken = rows.clone()
        rows.zero_()
        return taken
