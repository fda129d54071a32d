"""What tests leave in shared memory, on a machine where other tests run at the same time."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
PATIENCE_S = 60.0
"""A directory may be there for a while before its worker claims it, and after."""


def names() -> set[str]:
    return {name for name in os.listdir(SHARED_MEMORY) if not name.startswith("sem.loky")}


def left_since(before: set[str]) -> set[str]:
    """Names that are new and that no living process uses, now or within `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while (left := names() - before - _mapped()) and time.monotonic() < deadline:
        left = {name for name in left if not _claimed(SHARED_MEMORY / name)}
        if not left:
            break
        time.sleep(0.5)
    return left


def _mapped() -> set[str]:
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            paths = [each.path for each in process.memory_maps(grouped=True)] + [each.path for each in process.open_files()]
            found |= {Path(path).relative_to(SHARED_MEMORY).parts[0] for path in paths if path.startswith(f"{SHARED_MEMORY}/")}
    return found


def _claimed(directory: Path) -> bool:
    """Whether a living worker has its claim in `directory` of a run."""
    with contextlib.suppress(OSError, ValueError):
        return any(psutil.pid_exists(json.loads(claim.read_text())["pid"]) for claim in directory.glob("*.claim"))
    return False
