"""Matrix products, by whichever library is fast on this processor.

torch hands float32 products on the CPU to MKL, which keeps to AVX2 on processors that are not Intel's. oneDNN, which torch
carries too, uses AVX-512 on all of them: on one core of an AMD EPYC with 512-bit units it is 2.2 times as fast, for the
same sums in another order. Other dtypes and devices have one library, and use it.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

CACHED_ROWS = 256
"""Rows whose intermediate results stay in a processor's cache."""
STEP = 64
"""oneDNN is given multiples of this many rows, and BLAS the rest: it compiles a kernel for every number of rows that it
meets, which takes half a millisecond and up to a megabyte each."""

Library = Literal["blas", "onednn"]

_chosen: Library | None = None


def choose_library(library: Library) -> None:
    """Which one float32 products of this process use from now on. Without it: `fastest_library`."""
    global _chosen
    _chosen = library


@functools.cache
def fastest_library() -> Library:
    """Decided by the processor's make and not by a measurement, so that a run repeats bit by bit on its machine."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return "onednn" if wide and _vendor() != "GenuineIntel" else "blas"


def uses_onednn(x: Tensor) -> bool:
    """Whether products of matrices like `x` go to oneDNN."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and (_chosen or fastest_library()) == "onednn"


def pieces(rows: int, longest: int = CACHED_ROWS) -> list[slice]:
    """Rows in pieces of `longest` and what is left, cut where `product` would cut it. Never none, even of no rows."""
    starts = list(range(0, rows, longest)) or [0]
    left = rows - starts[-1]
    if left > STEP and left % STEP:
        starts.append(rows - left % STEP)
    return [slice(start, stop) for start, stop in pairwise((*starts, rows))]


def product(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    """x · weightᵀ, plus `residual`: x [rows, in], weight [out, in], result [rows, out]. Of any strides; without graph."""
    if not uses_onednn(x) or len(x) < STEP:
        return torch.mm(x, weight.T) if residual is None else torch.addmm(residual, x, weight.T)
    if len(x) % STEP == 0:
        return _onednn(x, weight, residual)
    out = x.new_empty((len(x), len(weight)))
    for rows in pieces(len(x), longest=len(x)):
        out[rows] = product(x[rows], weight, None if residual is None else residual[rows])
    return out


def add_product(total: Tensor, grad: Tensor, inputs: Tensor) -> None:
    """total += gradᵀ · inputs: total [out, in], grad [rows, out], inputs [rows, in]."""
    if not uses_onednn(grad):
        if total.device.type == "cuda" and total.dtype != grad.dtype:
            total += torch.mm(grad.T, inputs, out_dtype=total.dtype)
        else:
            total.addmm_(grad.T.to(total.dtype), inputs.to(total.dtype))
        return
    for rows in pieces(len(grad), longest=max(1, len(grad))):
        if rows.stop - rows.start < STEP:
            total.addmm_(grad[rows].T, inputs[rows])
        else:
            total.add_(_onednn(grad[rows].T, inputs[rows].T))


def _onednn(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    linear = torch.ops.mkldnn._linear_pointwise
    if residual is None:
        return linear(x, weight, None, "none", [], "")
    return linear.binary(x, residual, weight, None, "add")


def _vendor() -> str:
    """As the processor names it, `""` where the kernel does not say."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "")
