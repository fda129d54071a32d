"""The file in shared memory through which weights reach the engines of one node.

The object store keeps one copy of new weights a node, but only Ray's own processes can map it; an engine's process
cannot. So the first worker of a node that gets an update writes it into one file in the run's shared memory, all
engines of the node map that file, and the last one that is done removes it.

Invariants: a file under its final name is complete (written aside, then renamed). A file exists only while an update
that needs it runs; what a killed worker left is removed with the next update.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from actors.engine.run_memory import locked
from rl_system.machine.fit import too_little_shared_memory
from rl_system.machine.resources import free_bytes
from rl_system.training.model_files import write_safetensors

SUFFIX = ".safetensors"
UNFINISHED = ".part"


@contextmanager
def weight_file(directory: Path, name: str, arrays: Mapping[str, np.ndarray], timeout_s: float) -> Iterator[Path]:
    """A safetensors file that holds `arrays`, shared with the other workers of this node that ask for `name`.

    `name` has to identify the contents. Raises WeightsRejected if another worker holds the directory for over
    `timeout_s`, UserError where shared memory is too small.
    """
    path = directory / f"{name}{SUFFIX}"
    with locked(directory, timeout_s):
        _remove_unread(directory, keep=path)
        if not path.exists():
            _require_room(directory, arrays)
            written = path.with_suffix(UNFINISHED)
            write_safetensors(written, arrays)
            written.rename(path)
        reader = os.open(path, os.O_RDONLY)
        fcntl.flock(reader, fcntl.LOCK_SH)
    try:
        yield path
    finally:
        with locked(directory, timeout_s):
            os.close(reader)
            _remove_unread(directory)


def _remove_unread(directory: Path, keep: Path | None = None) -> None:
    """Remove weight files that no worker reads, and unfinished ones. The caller holds the directory."""
    for path in directory.glob(f"*{UNFINISHED}"):
        path.unlink()
    for path in directory.glob(f"*{SUFFIX}"):
        if path != keep and not _is_read(path):
            path.unlink()


def _is_read(path: Path) -> bool:
    """Whether a worker holds its shared lock on `path`. Locks of dead processes are gone."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _require_room(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    needed = sum(array.nbytes for array in arrays.values())
    free = free_bytes(directory) or 0
    if needed > free:
        raise too_little_shared_memory(needed, free, "for one set of parameters")
