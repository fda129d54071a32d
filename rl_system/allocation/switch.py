"""The move of one accelerator from one side to the other, as a pure state machine.

    LEAVING ──► STARTING ──► JOINING ──► MOVED
       │            └────┬──────┘
       ▼                 ▼ (the giver starts on it again)
      KEPT          STARTING ──► JOINING ──► RETURNED
                         └──────────┴──────► LOST

The side that gives (`giver`) first lets go of the device; the side that takes it then starts on it beside its running
members and joins them. A side that cannot start or join gives way to the giver, which starts on the device again; if
that fails too the device is given up and the run goes on without it. Every path ends in a state in which both sides
run.

Invariant: at every moment the device has one owner or none; it changes hands only once its owner has let go of it, and
whoever could not join has let go of it as well.
"""

from __future__ import annotations

import enum

from rl_system.allocation.decision import Move
from rl_system.allocation.observation import Split


class Side(enum.StrEnum):
    ROLLOUT = "rollout"
    TRAINER = "trainer"


class Phase(enum.StrEnum):
    LEAVING = "leaving"
    STARTING = "starting"
    JOINING = "joining"
    OVER = "over"


class Outcome(enum.StrEnum):
    MOVED = "moved"
    KEPT = "kept"
    """The giver could not let go; nothing has changed."""
    RETURNED = "returned"
    """The taker could not start or join; the giver has the device again."""
    LOST = "lost"
    """Neither could; nobody has the device."""


class Switch:
    """`device` goes the way of `move`; `split` is that of before. It is told what became of each phase and says what is
    next.
    """

    def __init__(self, move: Move, device: int, split: Split) -> None:
        self.move, self.device, self.before = move, device, split
        self.giver, self.taker = (
            (Side.ROLLOUT, Side.TRAINER) if move is Move.TO_TRAINER else (Side.TRAINER, Side.ROLLOUT)
        )
        self.phase = Phase.LEAVING
        self.side = self.giver
        """Whose turn it is: the side that leaves, or the one that starts and joins."""
        self.outcome: Outcome | None = None
        self.failures: list[str] = []

    @property
    def over(self) -> bool:
        return self.phase is Phase.OVER

    @property
    def needs_standstill(self) -> bool:
        """The next phase forms the trainers' group anew, which only happens between two steps."""
        return self.side is Side.TRAINER and self.phase in (Phase.LEAVING, Phase.JOINING)

    @property
    def owner(self) -> Side | None:
        """Who has the device, or may be starting on it."""
        return None if self.outcome is Outcome.LOST else self.side

    @property
    def split(self) -> Split:
        """Accelerators that work, before, during and after."""
        rollout, trainer = self.before
        if self.phase is Phase.LEAVING or self.outcome in (Outcome.KEPT, Outcome.RETURNED):
            return self.before
        if self.outcome is Outcome.MOVED:
            return self.move.applied(self.before)
        return Split(rollout - 1, trainer) if self.giver is Side.ROLLOUT else Split(rollout, trainer - 1)

    def succeeded(self) -> None:
        """The phase is done."""
        match self.phase:
            case Phase.LEAVING:
                self.phase, self.side = Phase.STARTING, self.taker
            case Phase.STARTING:
                self.phase = Phase.JOINING
            case Phase.JOINING:
                self._end(Outcome.MOVED if self.side is self.taker else Outcome.RETURNED)
            case Phase.OVER:
                raise RuntimeError("switch: a phase ended after the switch was over")

    def failed(self, reason: str) -> None:
        """The phase came to nothing. A side that failed to start or to join holds nothing of the device any more."""
        self.failures.append(f"{self.side} {self.phase}: {reason}")
        match self.phase:
            case Phase.LEAVING:
                self._end(Outcome.KEPT)
            case Phase.STARTING | Phase.JOINING if self.side is self.taker:
                self.phase, self.side = Phase.STARTING, self.giver
            case Phase.STARTING | Phase.JOINING:
                self._end(Outcome.LOST)
            case Phase.OVER:
                raise RuntimeError("switch: a phase failed after the switch was over")

    def _end(self, outcome: Outcome) -> None:
        self.phase, self.outcome = Phase.OVER, outcome
