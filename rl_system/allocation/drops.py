"""Groups that were dropped since the last one that could be trained on, and what that says."""

from __future__ import annotations

from collections import Counter

ZERO_SIGNAL = "zero_signal"
REASONS = {
    ZERO_SIGNAL: "had no signal: the policy solves all of these tasks or none; use a longer warm start, other tasks or "
    "larger groups",
    "failed": "failed: an environment or a rollout worker broke each time their episodes were tried; failures.log in the "
    "run's directory tells how",
}
"""What a person reads, by the reason that a group is dropped for."""


class DropStreak:
    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._reasons.total()

    def dropped(self, reason: str) -> None:
        self._reasons[reason] += 1

    def finished(self) -> None:
        """A group can be trained on: the streak is over."""
        self._reasons.clear()

    def explain(self) -> str:
        """Why all of them were dropped, the most frequent reason first."""
        parts = (f"{count} {REASONS.get(reason, reason)}" for reason, count in self._reasons.most_common())
        return (
            f"the last {len(self)} groups were all dropped, which rollout.max_drops_in_a_row does not allow: "
            + ". ".join(parts)
        )
