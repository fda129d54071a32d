"""The file in shared memory through which weights reach the engines of one node.

The object store keeps one copy of new weights a node, but only Ray's own processes can map it; an engine's process
cannot. So the first worker of a node that gets an update writes it into one file in shared memory, all engines of the
node map that file, and the last one that is done removes it.

Invariants: a file under its final name is complete (written aside, then renamed). A file exists only while an update
that needs it runs. Nothing outside the run's own directory is ever touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rl_system.errors import UserError

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "rl-system-"
LOCK_POLL_S = 0.02

SAFETENSORS_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""numpy's name of a dtype (bfloat16: that of ml_dtypes) to that of the file format."""


def run_directory(run: Path) -> Path:
    """The directory in shared memory that belongs to the run in directory `run`, and to no other."""
    digest = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
    return SHARED_MEMORY / f"{PREFIX}{digest}"


def remove_run_directory(run: Path) -> None:
    """Remove what the workers of `run` may have left in shared memory, on this node. Only when none of them lives."""
    shutil.rmtree(run_directory(run), ignore_errors=True)


@contextmanager
def weight_file(directory: Path, name: str, arrays: Mapping[str, np.ndarray], timeout_s: float) -> Iterator[Path]:
    """A safetensors file that holds `arrays`, shared with the other workers of this node that ask for `name`.

    `name` has to identify the contents. Raises TimeoutError if another worker holds the directory for `timeout_s`.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / f"{name}.safetensors"
    with _locked(directory / "lock", timeout_s):
        if not path.exists():
            _require_room(directory, arrays)
            written = path.with_suffix(f".{os.getpid()}")
            write_safetensors(written, arrays)
            written.rename(path)
        reader = os.open(path, os.O_RDONLY)
        fcntl.flock(reader, fcntl.LOCK_SH)
    try:
        yield path
    finally:
        with _locked(directory / "lock", timeout_s):
            if _last_reader(reader):
                path.unlink(missing_ok=True)
            os.close(reader)


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` without a second copy in memory (the format: header length, JSON header, raw data)."""
    header: dict[str, dict] = {}
    offset = 0
    for name, array in arrays.items():
        dtype = SAFETENSORS_DTYPES[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _last_reader(reader: int) -> bool:
    """Whether no other worker reads the file: a shared lock turns exclusive only where it is the only one."""
    try:
        fcntl.flock(reader, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another worker has held {path} for {timeout_s} s") from None
                time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _require_room(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    needed = sum(array.nbytes for array in arrays.values())
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise UserError(
            f"weights.transport 'object_store' needs {needed / 2**20:.0f} MiB of shared memory in {SHARED_MEMORY}, "
            f"which has {free / 2**20:.0f} MiB left; make it larger (containers: --shm-size) or use "
            "weights.transport 'directory'"
        )
