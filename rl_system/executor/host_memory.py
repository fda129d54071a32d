"""How this process keeps the memory that tensors on the CPU free.

A step allocates and frees the same large tensors again and again. By default glibc gives each back to the kernel, which
must then clear it page by page for the next one: with large blocks a tenth of a step.
"""

from __future__ import annotations

import ctypes
import functools

# Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
LARGEST_INT = 2**31 - 1


@functools.cache
def keep_freed_memory() -> bool:
    """Let freed memory stay with the process, for its next tensors. False where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, LARGEST_INT))
