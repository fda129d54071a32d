"""Failures of the episodes that one process plays: watched, and written to a file of the run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_system.records import Episode, Task
from rl_system.tracking.failure_log import NAME, FailureLog
from rl_system.tracking.failures import FailureWatch, Sighting


class FailureBook:
    """directory: of the run, where `failures.log` is. tasks: how many there are to play."""

    def __init__(self, directory: Path, tasks: int) -> None:
        self.watch = FailureWatch(tasks)
        self.log = FailureLog(directory / NAME)
        self._numbers = itertools.count()

    @contextmanager
    def playing(self, task: Task) -> Iterator[Callable[[Episode], None]]:
        """An episode of `task` is played within; what is yielded is told the episode. Without one it was cancelled."""
        number = next(self._numbers)
        self.watch.started(task, number, time.monotonic())

        def over(episode: Episode) -> None:
            self.watch.ended(task, number, time.monotonic(), episode.failure)
            if episode.failure is not None:
                self.log.write(task, episode.failure, self.watch.times_seen(episode.failure))

        try:
            yield over
        finally:
            self.watch.cancelled(task, number)

    def take_news(self) -> list[Sighting]:
        """Failures of new kinds since the last call."""
        return self.watch.take_news()

    def verdict(self) -> str | None:
        """Why going on is of no use, as a paragraph; None while it is."""
        reason = self.watch.verdict(time.monotonic())
        return reason and f"{reason}. Tracebacks are in {self.log.path}"


def told(sighting: Sighting) -> str:
    """A line for the console."""
    return f"an episode of task {sighting.task.task_id} failed: {sighting.failure.what}"
