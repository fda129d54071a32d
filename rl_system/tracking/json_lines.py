"""JSON lines on disk that survive a kill, and a disk that is full for a while.

Invariant: every line but a torn last one is a complete JSON object, and a torn last one is dropped by whoever opens
the file next. A line is on its way to the disk when `write` returns True; what the disk did not take is kept in memory and
written before the next line, from the byte on at which it stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_system.strict_json import replace_file, to_json


@dataclass(frozen=True, slots=True)
class Lines:
    """lines: the objects of a file, in order. broken: what in it is no object, by the number of its line; a torn last
    line is not among them.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)


class JsonLines:
    """Appends to `path`. keep: which existing lines stay (on a resume: those before the step that is done again); None
    to start the file anew.

    kept, undone: the existing lines by that choice. broken: what was no line at all and is gone from the file.
    """

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool] | None) -> None:
        found = scan_lines(path) if keep is not None else Lines()
        self.kept = [line for line in found.lines if keep(line)]
        self.undone = [line for line in found.lines if not keep(line)]
        self.broken = found.broken
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, "".join(map(_line, self.kept)))  # the old file stays whole until the new one is
        self.path = path
        self._waiting = b""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write(self, values: dict[str, Any]) -> bool:
        """Append a line. False where it waits, perhaps in part, until the disk takes it; `fault` says why."""
        self._waiting += _line(values).encode()
        return self._flush()

    def sync(self) -> bool:
        """Force what was written to the disk itself. False where it waits."""
        done = self._flush()
        try:
            os.fsync(self._file)
        except OSError as error:
            self.fault, done = error, False
        return done

    def close(self) -> bool:
        """Whether everything that was written is on the disk. Safe to call twice."""
        done = self._flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        return done

    def _flush(self) -> bool:
        self.fault = None
        try:
            while self._waiting and self._file is not None:
                self._waiting = self._waiting[os.write(self._file, self._waiting) :]
        except OSError as error:
            self.fault = error
        return not self._waiting


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of `path`; none where there is no file. ValueError for a broken line that is not the last."""
    found = scan_lines(path)
    for number, text in found.broken.items():
        raise ValueError(f"{path}, line {number} is not JSON: {text[:80]!r}")
    return found.lines


def scan_lines(path: Path) -> Lines:
    """What `path` holds, broken lines apart; nothing where there is no file."""
    found = Lines()
    if not path.exists():
        return found
    # As bytes: a kill may tear a line within a character.
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            found.lines.append(value)
        elif number < len(lines):
            found.broken[number] = line.decode(errors="replace")
    return found


def _line(values: dict[str, Any]) -> str:
    return to_json(values) + "\n"
