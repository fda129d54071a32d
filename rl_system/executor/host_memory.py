"""How this process keeps the memory that tensors on the CPU free.

A step allocates and frees the same tensors again and again. What glibc gives back to the kernel each time, the kernel must
clear page by page for the next one: a tenth of a step where blocks have no limit, a twentieth at 1,024 tokens a block.
Keeping everything costs memory, as what is freed between tensors that live on stays too. So that is for unlimited blocks;
with limited ones large tensors still go back, and of the rest what lies at the heap's end beyond a bound.
"""

from __future__ import annotations

import ctypes
import functools

# Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4
LARGEST_INT = 2**31 - 1

LARGE_TENSOR = 32 * 2**20
KEPT_AT_END = 32 * 2**20
"""Bytes: of tensors that go back at once, and kept at the heap's end, where blocks are limited."""


@functools.cache
def keep_freed_memory(everything: bool) -> bool:
    """Let freed memory stay with the process, for its next tensors. False where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    if everything:
        return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, LARGEST_INT))
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE_TENSOR) and mallopt(M_TRIM_THRESHOLD, KEPT_AT_END))


def give_back_freed_memory() -> None:
    """Give memory that was freed back to the kernel, also what `keep_freed_memory` keeps, where the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
