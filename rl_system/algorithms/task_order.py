"""Every task once an epoch, in an order fixed by the seed.

Tasks are shuffled as a whole, or in windows: a split whose tasks come in a fixed mix of kinds then keeps that mix in
every window, and rewards of successive steps can be compared.

Invariant: the order depends on the seed, the epoch and the number of tasks alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class EpochOrder:
    """Tasks are known by their index. window: consecutive tasks that stay together; they are shuffled among themselves,
    and windows among each other."""

    kind = "epochs"

    def __init__(self, count: int, seed: int, window: int | None = None) -> None:
        self.count, self.seed, self.window = count, seed, window or count
        self.epoch = 0
        self.position = 0

    def next(self) -> int:
        if self.position == self.count:
            self.epoch, self.position = self.epoch + 1, 0
        task = self._order()[self.position]
        self.position += 1
        return int(task)

    def _order(self) -> np.ndarray:
        """This epoch's order of the tasks, as indices."""
        random = np.random.default_rng((self.seed, self.epoch))
        tasks = np.arange(self.count)
        windows = [tasks[start : start + self.window] for start in range(0, self.count, self.window)]
        return np.concatenate([random.permutation(windows[i]) for i in random.permutation(len(windows))])

    def observe(self, task: int, solved: int, episodes: int) -> None:
        """What came of a task changes nothing here."""

    def metrics(self) -> dict[str, float]:
        return {"rollout/epoch": self.epoch + self.position / self.count}

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind, "epoch": self.epoch, "position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
