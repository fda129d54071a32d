"""Whether a place on the disk takes what a command is going to write there, found out before it has worked for hours.

Nothing is left behind, and what was there stays as it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rl_system.errors import UserError

GIB = 1 << 30
PACKAGES = ("runtime_resources", "working_dir_files")
"""Where Ray unpacks the working directories of jobs, below its own temporary directory on every node."""


def require_writable(directory: Path, option: str) -> None:
    """UserError unless files can be written in `directory`, which need not exist yet. option: what a person set it with."""
    made: list[Path] = []
    try:
        made = [each for each in (directory, *directory.parents) if not each.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"\0" * os.stat(directory).st_blksize)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = "it is no directory" if isinstance(error, FileExistsError) else error.strerror
        where = "" if error.filename in (None, str(directory)) else f", at {error.filename}"
        raise UserError(
            f"{option}: {directory} cannot be written ({reason}{where}); give a directory that you may write in"
        ) from None
    finally:
        for each in made:
            with contextlib.suppress(OSError):  # somebody else's things are in it by now, or it was not made
                each.rmdir()


@contextlib.contextmanager
def made_for(directory: Path) -> Iterator[None]:
    """For whoever makes `directory`: it and its parents that are missing now are removed again in the end, where they are
    empty.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        yield
    finally:
        for each in missing:
            with contextlib.suppress(OSError):
                each.rmdir()


@contextlib.contextmanager
def tentative_contents(directory: Path, kept: Callable[[], bool]) -> Iterator[None]:
    """Unless they are `kept` in the end, all that has come into `directory` meanwhile is removed again. Nobody else may be
    writing there.
    """
    before = set(directory.iterdir())
    try:
        yield
    finally:
        if not kept():
            for each in set(directory.iterdir()) - before:
                if each.is_dir() and not each.is_symlink():
                    shutil.rmtree(each, ignore_errors=True)
                else:
                    each.unlink(missing_ok=True)


def require_space(directory: Path, needed: int, option: str, purpose: str) -> None:
    """UserError unless the file system of `directory`, which need not exist yet, has `needed` bytes free. purpose: of them."""
    there = next(each for each in (directory, *directory.parents) if each.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise UserError(
            f"{option}: {purpose} need {_size(needed)}, and the file system of {directory} has {_size(free)} free; make room "
            "there, or give a directory on another one"
        )


def require_lasting(directory: Path, option: str) -> None:
    """UserError where `directory` is below the copy of its working directory that Ray made for a job."""
    package = package_of(directory)
    if package is not None:
        raise UserError(
            f"{option}: {directory} is in {package}, Ray's temporary copy of the working directory that the job was submitted "
            "with, and would be lost with it; give an absolute path that every node of the run sees, such as "
            f"--output {Path.home() / 'runs'} where home directories are shared"
        )


def package_of(path: Path) -> Path | None:
    """The copy of a job's working directory that `path` is in; None where it is in none."""
    parts = path.parts
    for at in range(len(parts) - len(PACKAGES)):
        if parts[at : at + len(PACKAGES)] == PACKAGES:
            return Path(*parts[: at + len(PACKAGES) + 1])
    return None


def _size(size: float) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size / (1 << 20):.2f} MiB"
