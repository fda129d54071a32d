"""What a simulated run leaves behind: one row a policy update, and the decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rl_system.allocation.decision import Decision, Move
from rl_system.allocation.observation import Split


@dataclass(slots=True)
class StepRow:
    """seconds: end of the update. staleness_mean, staleness_max: over the groups trained on."""

    seconds: float
    split: Split
    update_s: float
    waited_s: float
    staleness_mean: float
    staleness_max: int


@dataclass(slots=True)
class SimulationResult:
    groups_per_batch: int
    rows: list[StepRow] = field(default_factory=list)
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    moves: list[tuple[int, Move]] = field(default_factory=list)

    @property
    def seconds(self) -> np.ndarray:
        """float64 [steps], end of every update."""
        return np.array([row.seconds for row in self.rows])

    def groups_per_s(self, skip: int = 0) -> float:
        """Rate over all steps after the first `skip`."""
        start = self.rows[skip - 1].seconds if skip else 0.0
        return (len(self.rows) - skip) * self.groups_per_batch / (self.rows[-1].seconds - start)

    def most_moves(self, steps: int = 100) -> int:
        """Most moves within any `steps` steps in a row."""
        return _most([step for step, _ in self.moves], steps)

    def most_turns(self, steps: int = 100) -> int:
        """Most moves within any `steps` steps in a row that went the other way than the one before: oscillation."""
        pairs = zip(self.moves, self.moves[1:], strict=False)
        return _most([step for (_, before), (step, move) in pairs if move is not before], steps)


def _most(at: list[int], steps: int) -> int:
    """Most of the steps `at` that lie within any `steps` in a row."""
    return max((sum(first <= step < first + steps for step in at) for first in at), default=0)
