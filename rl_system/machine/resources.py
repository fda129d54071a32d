"""What this process may still use of its machine: memory, processors, shared memory, processes, open files.

The machine's own numbers say what it has, and not what a container, a batch job or a service of it may take. Everybody who sizes
anything by the machine asks here, so that a limit is heard of before the kernel kills for it.
"""

from __future__ import annotations

import math
import os
import resource
import socket
from dataclasses import dataclass
from pathlib import Path

from rl_system.machine.control_groups import ROOT, memory_limit, process_limit, processor_limit

KIB = 1 << 10
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one process on `host`, as of when it looked.

    memory: bytes that can still be taken. memory_limit: bytes that its tightest control group may take in all, None where
    the machine itself is what bounds it. shared_memory: free bytes of /dev/shm, None where there is none. processors: whole
    ones, at least 1. open_files, processes: that it may have, with and without those there are; None: unlimited.
    """

    host: str
    memory: int
    memory_limit: int | None
    shared_memory: int | None
    processors: int
    open_files: int | None
    processes: int | None

    @classmethod
    def look(cls, root: Path = ROOT) -> Resources:
        """root: where /proc, /sys and /dev are looked for."""
        memory, limit = available_memory(root), memory_limit(root)
        limited = limit is not None and limit.left < memory
        return cls(
            host=socket.gethostname(),
            memory=limit.left if limited else memory,
            memory_limit=limit.limit if limited else None,
            shared_memory=free_bytes(root / "dev/shm"),
            processors=usable_processors(root),
            open_files=_allowed(resource.RLIMIT_NOFILE),
            processes=_processes(root),
        )

    @property
    def memory_in_words(self) -> str:
        available = f"{self.memory / GIB:.1f} GiB are available"
        if self.memory_limit is None:
            return available
        return f"{available} (the container or job may take {self.memory_limit / GIB:.1f} GiB in all)"


def usable_processors(root: Path = ROOT) -> int:
    """Whole processors that this process may keep busy, at least 1: those it may run on, and no more than the quota of its
    control groups. Threads beyond that hold each other up.
    """
    return max(min(len(os.sched_getaffinity(0)), _whole(processor_limit(root))), 1)


def available_memory(root: Path = ROOT) -> int:
    """Bytes that the kernel could give to processes without swapping, whatever the limits are."""
    fields = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * KIB


def free_bytes(directory: Path) -> int | None:
    """Of the file system of `directory`, for this user; None where there is no such directory."""
    try:
        status = os.statvfs(directory)
    except FileNotFoundError:
        return None
    return status.f_bavail * status.f_frsize


def _processes(root: Path) -> int | None:
    limit = process_limit(root)
    allowed = [] if limit is None else [limit.left]
    own = _allowed(resource.RLIMIT_NPROC)
    if own is not None and os.geteuid() != 0:  # the superuser is not held to it
        allowed.append(own)
    return min(allowed, default=None)


def _allowed(what: int) -> int | None:
    """The hard limit: whoever needs more than the soft one raises it, as Ray does."""
    _, hard = resource.getrlimit(what)
    return None if hard == resource.RLIM_INFINITY else hard


def _whole(processors: float) -> int:
    return 1 << 30 if math.isinf(processors) else int(processors)
