"""Which runs there are, and which of their files may be opened.

Invariant: no file outside the folders that were given is ever opened, whatever names or links lie in them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_system.errors import UserError

MARKS = ("metrics.jsonl", "events.jsonl", "config.yaml", "episodes")
"""What a run leaves from its first minute on; a directory with two of them is one."""
QUIET_S = 300.0
"""A run that is not finished and has written nothing for so long is shown as stopped."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """name: how the viewer calls it; unique. path: resolved."""

    name: str
    path: Path

    def file(self, *parts: str) -> Path | None:
        """The file at `parts` below the run; None where there is none, or where it lies outside the run."""
        path = self.path.joinpath(*parts)
        try:
            resolved = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # vanished, a loop of links, or a name that no file can have
            return None
        return resolved if resolved.is_relative_to(self.path) else None

    def written_at(self) -> float:
        """Seconds since the epoch of the last thing that the run wrote; 0 where it wrote nothing."""
        times = [0.0]
        for name in ("metrics.jsonl", "events.jsonl", "episodes"):
            if (path := self.file(name)) is not None:
                times.append(_modified(path))
        return max(times)

    def is_quiet(self) -> bool:
        return time.time() - self.written_at() > QUIET_S


def find_runs(folders: Sequence[Path]) -> dict[str, RunFolder]:
    """The runs that `folders` are, or hold, by name. UserError for a folder that does not exist or is unreadable."""
    found: dict[str, RunFolder] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"{folder} is no directory; give runs (runs/<name>), or directories with runs in them (runs)"
            )
        try:
            paths = [folder.resolve()] if is_run(folder) else sorted(_runs_in(folder.resolve()))
        except PermissionError as error:
            raise UserError(f"{folder} cannot be read: {error.strerror}") from None
        for path in paths:
            if path not in {run.path for run in found.values()}:
                name = _free_name(path, found)
                found[name] = RunFolder(name, path)
    return found


def is_run(directory: Path) -> bool:
    return sum((directory / mark).exists() for mark in MARKS) >= 2


def _runs_in(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        # A link in the folder may lead anywhere: it was not given.
        if path.is_dir() and not path.is_symlink() and is_run(path):
            yield path


def _free_name(path: Path, taken: dict[str, RunFolder]) -> str:
    """The directory's name; of a second run of that name with its number."""
    name, count = path.name or "run", 2
    while name in taken:
        name, count = f"{path.name}-{count}", count + 1
    return name


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
