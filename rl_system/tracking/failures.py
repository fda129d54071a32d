"""Which failures of episodes a person should hear of, and when so many fail that going on is of no use.

Owns no clock and no file: it is told when episodes start and how they end, and answers with what is new and with a verdict.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass

from rl_system.records import Failure, Task

SHOWN_KINDS = 5
"""Kinds of failures that are shown; later ones are counted."""
NEARLY_ALL = 0.9
"""Share of failures from which on going on is of no use."""
FEWEST_EPISODES = 16
"""Episodes that must have ended for a verdict."""
FEWEST_TASKS = 3
"""Tasks that must fail for a verdict, or all there are: one broken task says nothing about the others."""
RECENT_EPISODES, RECENT_TASKS = 64, 16
"""What a verdict looks back at."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A failure of a kind that was not seen before, in an episode of `task`."""

    task: Task
    failure: Failure


class FailureWatch:
    """tasks: how many there are to play.

    A verdict is about environments. Episodes whose sampler failed are shown, but say nothing about them.
    """

    def __init__(self, tasks: int) -> None:
        self._fewest_tasks = min(FEWEST_TASKS, tasks)
        self._news: list[Sighting] = []
        self._kinds: Counter[tuple[str, str]] = Counter()
        self._ended: deque[Failure | None] = deque(maxlen=RECENT_EPISODES)
        self._failing: dict[Task, bool] = {}
        """Whether the last episode of a task failed, of the tasks whose episodes ended last, in that order."""
        self._running: dict[tuple[Task, int], float] = {}
        """When the running episodes began."""
        self._patience_s = 0.0
        """How long the last episode took that failed."""
        self.failures = 0
        """Of environments and agents, so far."""

    def started(self, task: Task, episode: int, now: float) -> None:
        """episode: any number that tells the running episodes of a task apart."""
        self._running[task, episode] = now

    def ended(self, task: Task, episode: int, now: float, failure: Failure | None) -> None:
        """The episode is over; failure: None where it was played to some end."""
        began = self._running.pop((task, episode), now)
        if failure is not None:
            self._see(task, failure)
            if failure.of == "generation":
                return
            self._patience_s = now - began
            self.failures += 1
        self._ended.append(failure)
        self._failing.pop(task, None)
        self._failing[task] = failure is not None
        if len(self._failing) > RECENT_TASKS:
            del self._failing[next(iter(self._failing))]

    def cancelled(self, task: Task, episode: int) -> None:
        """The episode was given up before it ended, which says nothing."""
        self._running.pop((task, episode), None)

    def take_news(self) -> list[Sighting]:
        """Failures of new kinds since the last call. A kind is shown once, and at most `SHOWN_KINDS` are."""
        news, self._news = self._news, []
        return news

    def times_seen(self, failure: Failure) -> int:
        """How many failures of its kind there were so far."""
        return self._kinds[kind_of(failure)]

    def verdict(self, now: float) -> str | None:
        """Why going on is of no use, in words; None while it is.

        Nearly all of the last episodes failed, and nearly all of the tasks that they were of. A task none of whose
        episodes has ended yet counts as a good one once it has run longer than those that failed: tasks that break at
        once do not outvote others that take their time.
        """
        failed = [failure for failure in self._ended if failure is not None]
        if len(self._ended) < FEWEST_EPISODES or len(failed) < NEARLY_ALL * len(self._ended):
            return None
        failing = sum(self._failing.values())
        alive = {
            task
            for (task, _), began in self._running.items()
            if task not in self._failing and now - began > self._patience_s
        }
        if failing < self._fewest_tasks or failing < NEARLY_ALL * (len(self._failing) + len(alive)):
            return None
        (most, times), *_ = Counter(failure.what for failure in failed).most_common(1)
        return (
            f"{len(failed)} of the last {len(self._ended)} episodes failed because their environment or agent broke, of {failing} "
            f"of {len(self._failing) + len(alive)} tasks; {times} of them: {most}"
        )

    def _see(self, task: Task, failure: Failure) -> None:
        kind = kind_of(failure)
        self._kinds[kind] += 1
        if self._kinds[kind] == 1 and len(self._kinds) <= SHOWN_KINDS:
            self._news.append(Sighting(task, failure))


def kind_of(failure: Failure) -> tuple[str, str]:
    """What failures have in common that a person would take for the same: the place, and what was said there but for names
    and numbers."""
    text, _, place = failure.what.rpartition(" (")
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "…", text or place), place if text else ""
