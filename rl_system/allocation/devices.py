"""Who owns which accelerator of a run, known by the index of its bundle.

Invariant: a device has at most one owner; it passes from one side to the other only by way of nobody.
"""

from __future__ import annotations

from rl_system.allocation.decision import Move
from rl_system.allocation.observation import Split
from rl_system.allocation.switch import Side


class Devices:
    """At the start the first devices generate and the others train."""

    def __init__(self, split: Split) -> None:
        self._owned: dict[Side, list[int]] = {
            Side.ROLLOUT: list(range(split.rollout)),
            Side.TRAINER: list(range(split.rollout, sum(split))),
        }

    def of(self, side: Side) -> list[int]:
        """The devices of one side, in the order in which it got them."""
        return list(self._owned[side])

    def owner(self, device: int) -> Side | None:
        return next((side for side, devices in self._owned.items() if device in devices), None)

    @property
    def split(self) -> Split:
        return Split(len(self._owned[Side.ROLLOUT]), len(self._owned[Side.TRAINER]))

    def candidate(self, move: Move) -> int:
        """The device that goes next: the one that its side got last, so that a move and its opposite cancel out."""
        return self._owned[Side.ROLLOUT if move is Move.TO_TRAINER else Side.TRAINER][-1]

    def free(self, device: int) -> None:
        """Its owner has let go of it."""
        owner = self.owner(device)
        if owner is None:
            raise RuntimeError(f"device {device} was freed, but nobody owns it")
        self._owned[owner].remove(device)

    def claim(self, device: int, side: Side) -> None:
        """`side` starts on a device that nobody has."""
        owner = self.owner(device)
        if owner is not None:
            raise RuntimeError(f"device {device} was claimed for {side}, but belongs to {owner}")
        self._owned[side].append(device)
