"""Failures of episodes on disk, with their tracebacks: a text file for people, of bounded size."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rl_system.records import Failure, Task

NAME = "failures.log"
MOST_BYTES = 1 << 20
SAME_KIND = 3
"""Failures of one kind that are written; they differ in little."""


class FailureLog:
    """Appends to `path`, which is not made before there is something to write."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self._left = most_bytes - (path.stat().st_size if path.exists() else 0)

    def write(self, task: Task, failure: Failure, times_seen: int) -> None:
        """times_seen: failures of this kind so far, this one included."""
        if times_seen > SAME_KIND or self._left <= 0:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        lines = [f"{now}  task {task.task_id} of {task.environment}, {task.split}: {failure.what}"]
        lines += [f"    {line}" for line in failure.details.splitlines()]
        if times_seen == SAME_KIND:
            lines.append("    (the third like this; further ones are counted, not written)")
        text = "\n".join(lines) + "\n\n"
        content = text.encode("utf-8", errors="backslashreplace")
        if len(content) > self._left:
            content = content[: max(self._left, 0)] + b"\n[this file is full]\n"
        self._left -= len(content)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(content)
