"""JSON lines on disk that survive a kill.

Invariant: every line but a torn last one is a complete JSON object, and a torn last one is dropped by whoever opens
the file next. A line is on its way to the disk when `write` returns. Numbers that JSON lacks (NaN, infinities) are
written as null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class JsonLines:
    """Appends to `path`. keep: which existing lines stay (on a resume: those before the step that is done again); None
    to start the file anew.
    """

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool] | None) -> None:
        kept = [line for line in read_lines(path) if keep(line)] if keep is not None and path.exists() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".new")
        scratch.write_text("".join(map(_line, kept)))
        os.replace(scratch, path)  # the old file stays whole until the new one is
        self.kept = kept
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: dict[str, Any]) -> None:
        self._file.write(_line(values))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of `path`; none where there is no file. ValueError for a broken line that is not the last."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    result = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            result.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is not JSON: {line[:80]!r}") from None
    return result


def _line(values: dict[str, Any]) -> str:
    return json.dumps(_finite(values), allow_nan=False, default=_plain) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _plain(value: Any) -> Any:
    """NumPy numbers as Python's; anything else that JSON does not know by its text."""
    return _finite(value.item()) if hasattr(value, "item") else str(value)
