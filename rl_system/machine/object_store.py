"""How large the object store of a Ray that we start may grow.

Ray takes 30 % of the memory that it sees. It sees the machine and the outermost group of a container, but not the limit of a
batch job or service: there the store would grow past what the job may take instead of spilling to disk, and the kernel would end the
run.
"""

from __future__ import annotations

from rl_system.machine.resources import Resources

SHARE = 0.3
LEAST = 80 << 20
"""Bytes: Ray refuses less than 75 MiB."""
SLOW_STORAGE_AT_MOST = 10 * 10**9
"""Larger than shared memory Ray takes a store only up to this size."""


def object_store_bytes(node: Resources) -> int | None:
    """None where a control group is not what bounds memory: Ray's own choice is right then."""
    if node.memory_limit is None:
        return None
    wanted = int(node.memory * SHARE)
    if wanted > (node.shared_memory or 0):
        wanted = min(wanted, SLOW_STORAGE_AT_MOST)
    return max(wanted, LEAST)
