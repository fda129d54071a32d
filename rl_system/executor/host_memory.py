"""How this process keeps the memory that tensors on the CPU free.

A step allocates and frees the same tensors again and again. glibc gives those above 32 MiB back to the kernel each time,
which must then clear memory page by page for the next one: a tenth of a step where blocks have no limit. Keeping it costs
memory, as what is freed between tensors that live on stays too, so limited blocks do without.
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
