"""A file of JSON lines that somebody else is writing, read as far as it is.

Invariant: only complete lines count; what is there once is not read again unless the file was begun anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class GrowingLines:
    """lines: the objects so far. generation: counts how often the file was begun anew, as a resume does."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.generation = 0
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._checked = b""

    def refresh(self, path: Path | None) -> bool:
        """Read what `path` has more than before; None: there is no file. Whether anything changed."""
        try:
            stream = path.open("rb") if path is not None else None
        except OSError:
            stream = None
        if stream is None:
            return self._begin(None) if self._file is not None else False
        with stream:
            found = _identity(stream.fileno())
            stream.seek(max(0, self._offset - len(self._checked)))
            # The bytes before the place reached tell a file that grew from one that was written over.
            same = found == self._file and stream.read(len(self._checked)) == self._checked
            changed = False if same else self._begin(found)
            stream.seek(self._offset)
            data = stream.read()
        end = data.rfind(b"\n") + 1
        if not end:
            return changed
        for line in data[:end].split(b"\n"):
            if (value := parse_line(line)) is not None:
                self.lines.append(value)
        self._offset += end
        self._checked = (self._checked + data[:end])[-64:]
        return True

    def _begin(self, file: tuple[int, int] | None) -> bool:
        self.lines, self._file, self._offset, self._checked = [], file, 0, b""
        self.generation += 1
        return True


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None where it is torn, damaged, or no object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
