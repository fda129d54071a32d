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
    """Yield an empty directory to fill; on success it becomes `path`, on an exception it is removed."""
    staging = stage(path)
    try:
        yield staging
        publish(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def stage(path: Path) -> Path:
    """A new empty directory beside `path`, under a name that nobody reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = _aside(path)
    staging.mkdir()
    return staging


def publish(staging: Path, path: Path) -> None:
    """Flush `staging` and give it the name `path`. What had that name is moved away first, then removed."""
    flush_tree(staging)
    old = _aside(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(old)
    staging.rename(path)
    flush(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Remove `path`: gone as a whole from the first moment on, also where whoever removes it is killed meanwhile."""
    shutil.rmtree(path.rename(_aside(path)), ignore_errors=True)


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}{STAGING_MARK}{os.getpid()}-{secrets.token_hex(4)}")


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
