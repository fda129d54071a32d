"""Which task a group is started for: every task once an epoch, in an order fixed by the seed.

Tasks are shuffled as a whole, or in windows: a split whose tasks come in a fixed mix of kinds then keeps that mix in every
window, and rewards of successive steps can be compared.

Invariant: the order depends on the seed, the epoch and the tasks alone, so a resumed run goes on where it stopped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_system.errors import UserError
from rl_system.records import Task


class TaskSampler:
    """window: consecutive tasks that stay together; they are shuffled among themselves, and windows among each other."""

    def __init__(self, tasks: list[Task], seed: int, window: int | None = None) -> None:
        if not tasks:
            raise ValueError("task sampler: there are no tasks")
        self.tasks = tasks
        self.seed = seed
        self.window = window or len(tasks)
        self.epoch = 0
        self.position = 0
        self._again: list[Task] = []

    def next(self) -> Task:
        """The next task; tasks that were put back come first."""
        if self._again:
            return self._again.pop(0)
        if self.position == len(self.tasks):
            self.epoch, self.position = self.epoch + 1, 0
        task = self.tasks[self._order()[self.position]]
        self.position += 1
        return task

    def _order(self) -> np.ndarray:
        """This epoch's order of the tasks, as indices."""
        random = np.random.default_rng((self.seed, self.epoch))
        count = len(self.tasks)
        windows = [np.arange(start, min(start + self.window, count)) for start in range(0, count, self.window)]
        return np.concatenate([random.permutation(windows[i]) for i in random.permutation(len(windows))])

    def put_back(self, tasks: list[Task]) -> None:
        """Tasks whose groups were started but never finished; they are given out again before any other."""
        self._again += tasks

    def state(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self.position,
            "tasks": len(self.tasks),
            "again": [task.task_id for task in self._again],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises UserError where the state belongs to another set of tasks."""
        known = {task.task_id: task for task in self.tasks}
        strange = [task_id for task_id in state["again"] if task_id not in known]
        if state["tasks"] != len(self.tasks) or strange:
            raise UserError(
                f"the checkpoint was made with {state['tasks']} tasks, but environment.split has {len(self.tasks)} now"
                + (f" and lacks task {strange[0]!r}" if strange else "")
                + "; resume with the tasks that the run was started with"
            )
        self.epoch, self.position = state["epoch"], state["position"]
        self._again = [known[task_id] for task_id in state["again"]]
