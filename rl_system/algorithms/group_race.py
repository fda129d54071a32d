"""Which episodes make a group when more are started than are needed: the first to finish.

Owns the decision alone: it is told what ended, and says whether to go on waiting. An episode that failed is no
finisher; another one takes its place as long as there are spare ones.

Invariant: the members are the first `size` that ended without failing, and once they are known nothing changes them.
"""

from __future__ import annotations


class GroupRace:
    """size: members of the group; started: episodes, known by their index from 0."""

    def __init__(self, size: int, started: int) -> None:
        if not 1 <= size <= started:
            raise ValueError(f"a group of {size} cannot be made of {started} episodes")
        self.size = size
        self.running = set(range(started))
        """Episodes of which nothing was heard yet; once the race is over, those to cancel."""
        self._finished: list[int] = []

    def end(self, index: int, failed: bool) -> None:
        """Episode `index` ended. What ends in the same moment is told in the order of the indices."""
        self.running.remove(index)
        if not failed and not self.complete:
            self._finished.append(index)

    @property
    def complete(self) -> bool:
        """The group has all of its members."""
        return len(self._finished) == self.size

    @property
    def lost(self) -> bool:
        """So many failed that the group cannot be completed any more."""
        return len(self._finished) + len(self.running) < self.size

    @property
    def over(self) -> bool:
        return self.complete or self.lost

    @property
    def members(self) -> list[int]:
        """The finishers so far, in the order of their indices."""
        return sorted(self._finished)
