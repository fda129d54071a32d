"""What a run keeps in shared memory on one node, and how it is removed when workers were killed.

Owns one directory a run and node. In it: a lock that orders the node's workers, weight files, and one *claim* for every
worker: the names of the files elsewhere in shared memory that its engine's processes map (queues and semaphores of
vLLM, whose names do not tell whom they belong to). A killed engine cannot remove them; whoever cleans up reads them off
the claims.

Invariant: nothing is removed but the run's own directory and files that a claim of a dead worker names.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from actors.engine.errors import WeightsRejected
from rl_system.strict_json import write_json

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "rl-system-"
LOCK = "lock"
CLAIM = ".claim"
LOCK_POLL_S = 0.02
LEAVING_POLL_S = 0.2


def run_directory(run: Path) -> Path:
    """The directory in shared memory that belongs to the run in directory `run`, and to no other."""
    digest = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
    return SHARED_MEMORY / f"{PREFIX}{digest}"


def claim_shared_memory(directory: Path, timeout_s: float) -> None:
    """Write down which files of shared memory the processes below this one map."""
    worker = psutil.Process()
    inodes = {inode for process in worker.children(recursive=True) for inode in _mapped_inodes(process)}
    names = sorted(path.name for path in SHARED_MEMORY.iterdir() if path.is_file() and path.stat().st_ino in inodes)
    claim = {"pid": worker.pid, "started": worker.create_time(), "names": names}
    with locked(directory, timeout_s):
        write_json(_claim_of(directory, worker.pid), claim)


def leave_run_directory(directory: Path, timeout_s: float) -> None:
    """Remove this worker's claim with what its engine left, and the directory if no other worker of the node uses it.

    Call it when the engine's processes are gone: one that ended in order left nothing, one that was killed did.
    """
    if not directory.exists():
        return
    with locked(directory, timeout_s):
        claim = _claim_of(directory, os.getpid())
        if claim.exists():
            for path in [*_claimed_files(claim), claim]:
                path.unlink()
        if [path.name for path in directory.iterdir()] == [LOCK]:
            shutil.rmtree(directory)


def remove_leftovers(run: Path, timeout_s: float = 10.0) -> list[Path]:
    """Remove what dead workers of the run in directory `run` left in this node's shared memory; returns what.

    Live workers keep theirs, and the directory with it.
    """
    directory = run_directory(run)
    if not directory.exists():
        return []
    removed: list[Path] = []
    with locked(directory, timeout_s):
        claims = list(directory.glob(f"*{CLAIM}"))
        dead = [path for path in claims if not _is_alive(json.loads(path.read_text()))]
        for path in dead:
            removed += _claimed_files(path)
        if len(dead) == len(claims):
            removed += [path for path in directory.iterdir() if path.name != LOCK]
            shutil.rmtree(directory)
        for path in [*dead, *removed]:
            path.unlink(missing_ok=True)
    return removed


def clear_leftovers(run: Path, within_s: float = 10.0) -> None:
    """`remove_leftovers` once the workers of the run, which were just ended, are gone; those that do not go keep theirs."""
    deadline = time.monotonic() + within_s
    remove_leftovers(run)
    while run_directory(run).exists() and time.monotonic() < deadline:
        time.sleep(LEAVING_POLL_S)
        remove_leftovers(run)


@contextmanager
def locked(directory: Path, timeout_s: float) -> Iterator[None]:
    """Hold `directory` (made where missing) against the other workers of this node."""
    deadline = time.monotonic() + timeout_s
    while (descriptor := _try_lock(directory)) is None:
        if time.monotonic() > deadline:
            raise WeightsRejected(f"another worker has held {directory} for over {timeout_s} s")
        time.sleep(LOCK_POLL_S)
    try:
        yield
    finally:
        os.close(descriptor)


def _try_lock(directory: Path) -> int | None:
    """The lock's descriptor, or None where another worker has it or just removed the directory."""
    path = directory / LOCK
    directory.mkdir(mode=0o700, exist_ok=True)
    descriptor = None
    with suppress(BlockingIOError, FileNotFoundError):
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever removes the directory holds its lock: a lock on a removed file protects nothing.
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None


def _claim_of(directory: Path, pid: int) -> Path:
    return directory / f"{pid}{CLAIM}"


def _claimed_files(claim: Path) -> list[Path]:
    """Those files that `claim` names and that still exist: directly in shared memory, whatever the claim says."""
    names = json.loads(claim.read_text())["names"]
    return [path for name in names if (path := SHARED_MEMORY / Path(name).name).is_file()]


def _is_alive(claim: dict) -> bool:
    """Whether the worker that wrote `claim` runs: its pid may belong to another process by now."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(claim["pid"]).create_time() == claim["started"]
    return False


def _mapped_inodes(process: psutil.Process) -> set[int]:
    """Inodes of the files in shared memory that `process` maps.

    By inode and not by name: a semaphore is mapped under a temporary name before it gets its own.
    """
    try:
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    fields = [line.split(maxsplit=5) for line in lines]
    return {int(each[4]) for each in fields if len(each) == 6 and each[5].startswith(f"{SHARED_MEMORY}/")}
