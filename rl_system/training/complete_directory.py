"""Directories that are complete or absent.

A directory is written beside its final name, flushed to the disk, and renamed in one step. Whoever sees the final name
sees all of it, whatever was killed in between; what a killed writer left behind has a name that nobody reads.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

STAGING_MARK = ".incomplete-"
ABANDONED_AFTER_S = 24 * 3600.0
"""Age at which a staging directory is taken for the remains of a killed writer and removed."""


@contextlib.contextmanager
def complete_directory(path: Path) -> Iterator[Path]:
    """Yield an empty directory to fill; on success it becomes `path`, on an exception it is removed.

    Where `path` came into being meanwhile (two processes doing the same work), the first one stays and this one's
    result is dropped.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f"{path.name}{STAGING_MARK}{os.getpid()}-{secrets.token_hex(4)}")
    staging.mkdir()
    try:
        yield staging
        flush_tree(staging)
        with contextlib.suppress(FileExistsError, OSError) if path.is_dir() else contextlib.nullcontext():
            os.rename(staging, path)
        flush(path.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_abandoned(parent: Path, older_than_s: float = ABANDONED_AFTER_S) -> None:
    """Remove what killed writers left in `parent`. The caller vouches that nobody writes there for so long."""
    if not parent.is_dir():
        return
    for each in parent.iterdir():
        if STAGING_MARK in each.name and time.time() - each.stat().st_mtime >= older_than_s:
            shutil.rmtree(each, ignore_errors=True)


def flush_tree(directory: Path) -> None:
    """Force every file and directory below `directory` to the disk, innermost first."""
    for folder, _, files in os.walk(directory, topdown=False):
        for name in files:
            flush(Path(folder) / name)
        flush(Path(folder))


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
