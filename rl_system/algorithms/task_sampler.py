"""Which task a group is started for: every task once an epoch, or drawn by success rate.

Invariant: after `restore` a sampler gives out the tasks that the one whose state it was would have given out.
"""

from __future__ import annotations

from typing import Any, Protocol

from rl_system.algorithms.curriculum import Curriculum
from rl_system.algorithms.task_order import EpochOrder
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.records import Task


class Order(Protocol):
    """Says which task comes next, by its index. kind: what its state is known by."""

    kind: str

    def next(self) -> int: ...

    def observe(self, task: int, solved: int, episodes: int) -> None:
        """A group of `task` is over; `solved` of its `episodes` succeeded."""

    def metrics(self) -> dict[str, float]:
        """By full metric name."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class TaskSampler:
    def __init__(self, tasks: list[Task], order: Order) -> None:
        if not tasks:
            raise ValueError("task sampler: there are no tasks")
        self.tasks, self.order = tasks, order
        self._index = {task.task_id: index for index, task in enumerate(tasks)}
        self._again: dict[int, Task] = {}

    @classmethod
    def of(cls, tasks: list[Task], seed: int, config: EnvironmentConfig) -> TaskSampler:
        """As `environment.curriculum` and `environment.shuffle_window` want it."""
        if config.curriculum.enabled:
            return cls(tasks, Curriculum(len(tasks), seed, config.curriculum))
        return cls(tasks, EpochOrder(len(tasks), seed, config.shuffle_window))

    def next(self, group_id: int) -> Task:
        """The task that the group had before a resume, or else the next one."""
        return self._again.pop(group_id, None) or self.tasks[self.order.next()]

    def observe(self, task: Task, solved: int, episodes: int) -> None:
        """A group of `task` is over; `solved` of its `episodes` succeeded. Failed episodes are none."""
        self.order.observe(self._index[task.task_id], solved, episodes)

    def metrics(self) -> dict[str, float]:
        """By full metric name, as of now."""
        return self.order.metrics()

    def state(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {
            "order": self.order.state(),
            "tasks": len(self.tasks),
            "again": {str(group_id): task.task_id for group_id, task in self._again.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """`state["again"]`: task ids of groups that were started but never finished, by group; each is given out when its
        group starts again. Raises UserError where the state belongs to another set of tasks, or to another kind of order."""
        strange = [task_id for task_id in state["again"].values() if task_id not in self._index]
        if state["tasks"] != len(self.tasks) or strange:
            raise UserError(
                f"the checkpoint was made with {state['tasks']} tasks, but environment.split has {len(self.tasks)} now"
                + (f" and lacks task {strange[0]!r}" if strange else "")
                + "; resume with the tasks that the run was started with"
            )
        if state["order"]["kind"] != self.order.kind:
            was = state["order"]["kind"] == Curriculum.kind
            raise UserError(
                f"the checkpoint was made with environment.curriculum.enabled {str(was).lower()}; resume with the "
                "same, or start a new run from the checkpoint's model"
            )
        self.order.restore(state["order"])
        self._again = {int(group_id): self.tasks[self._index[task_id]] for group_id, task_id in state["again"].items()}
