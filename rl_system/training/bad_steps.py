"""Updates with a loss or gradient that was not finite: counted, and too many in a row stop the run. One that leaves
parameters that are not finite stops it at once: nothing could be learnt, published or saved any more.
"""

from __future__ import annotations

from typing import Any

from rl_system.errors import UserError
from rl_system.training.optimizer import StepOutcome


class BadSteps:
    """limit: bad steps in a row at which the run stops. remedy: what a person may change then, with its value."""

    def __init__(self, limit: int, remedy: str) -> None:
        self.limit, self.remedy = limit, remedy
        self.total = 0
        """Steps skipped so far in the whole run."""
        self._in_a_row = 0

    def watch(self, outcome: StepOutcome) -> None:
        """One more optimizer step. Raises UserError where it was the last of `limit` bad ones in a row, or left parameters
        that are not finite. A step without any gradient says nothing either way.
        """
        if not outcome.whole:
            raise UserError(
                f"training diverged: an update with gradient norm {outcome.gradient_norm} left parameters that are not "
                "finite; they were neither published nor saved. Resume from a checkpoint, or start again, with a smaller "
                f"{self.remedy}"
            )
        if outcome.empty:
            return
        if outcome.applied:
            self._in_a_row = 0
            return
        self.total += 1
        self._in_a_row += 1
        if self._in_a_row >= self.limit:
            raise UserError(
                f"training diverged: {self._in_a_row} updates in a row were not finite (the last had loss "
                f"{outcome.loss} and gradient norm {outcome.gradient_norm}) and optimizer.max_bad_steps allows no "
                f"more; resume from a checkpoint with a smaller {self.remedy}"
            )

    def state(self) -> dict[str, Any]:
        """What a learner that goes on elsewhere needs, so that a row of bad steps is not forgotten on the way."""
        return {"total": self.total, "in_a_row": self._in_a_row}

    def restore(self, state: dict[str, Any]) -> None:
        self.total, self._in_a_row = state["total"], state["in_a_row"]
