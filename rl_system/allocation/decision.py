"""What the allocation policy answers: keep the split or move one accelerator, and why, in words and numbers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from rl_system.allocation.observation import Split
from rl_system.allocation.pipeline import Limit


class Move(enum.StrEnum):
    TO_ROLLOUT = "to_rollout"
    TO_TRAINER = "to_trainer"

    @property
    def opposite(self) -> Move:
        return Move.TO_TRAINER if self is Move.TO_ROLLOUT else Move.TO_ROLLOUT

    def applied(self, split: Split, count: int = 1) -> Split:
        """`split` after `count` accelerators went this way."""
        shift = count if self is Move.TO_ROLLOUT else -count
        return Split(split.rollout + shift, split.trainer - shift)


@dataclass(frozen=True, slots=True)
class Decision:
    """Answer to one observation.

    move: what to carry out at this step boundary, or None. advice: what `auto` would do, whatever the mode.
    predicted: end-to-end groups/s of every split within the bounds. best: the split that the policy heads for.
    """

    move: Move | None
    reason: str
    current: Split
    best: Split
    limit: Limit
    advice: Move | None = None
    predicted: dict[Split, float] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """Predicted relative gain of the best split over the present one."""
        now = self.predicted.get(self.current, 0.0)
        return self.predicted[self.best] / now - 1 if now > 0 else 0.0
