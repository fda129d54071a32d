"""What becomes of a run that lost one of its actors: whether it is started once more."""

from __future__ import annotations


class PartLost(Exception):
    """A run can go on only from a checkpoint, with all of its actors started anew."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part} was lost: {reason}")
        self.part, self.reason = part, reason


class Attempts:
    """Counts the starts that brought a run no further than it had been before.

    limit: so many of them in a row are tried.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.made = 0
        """In a row, without getting further."""
        self._furthest = -1

    def another(self, step: int) -> bool:
        """Whether to start again after a loss, `step` policy updates done."""
        if step > self._furthest:
            self._furthest, self.made = step, 0
        if self.made >= self.limit:
            return False
        self.made += 1
        return True
