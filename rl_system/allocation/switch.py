"""An accelerator that changes hands, as a pure state machine: from one side to the other, to a side from outside (it joined
the cluster), or away from a side for good (it leaves the cluster).

    LEAVING ──► STARTING ──► JOINING ──► MOVED
       │  │         └────┬──────┘
       │  ▼              ▼ (the giver, where there is one, starts on it again)
       │ LEFT        STARTING ──► JOINING ──► RETURNED
       ▼                 └──────────┴──────► LOST
      KEPT

The side that gives (`giver`) first lets go of the device; the side that takes it then starts on it beside its running
members and joins them. A device from outside begins at STARTING, one that leaves for good ends after LEAVING. A side
that cannot start or join gives way to the giver, which starts on the device again; if that fails too the device is given up
and the run goes on without it. Every path ends in a state in which both sides run.

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

    @property
    def other(self) -> Side:
        return Side.TRAINER if self is Side.ROLLOUT else Side.ROLLOUT


class Phase(enum.StrEnum):
    LEAVING = "leaving"
    STARTING = "starting"
    JOINING = "joining"
    OVER = "over"


class Outcome(enum.StrEnum):
    MOVED = "moved"
    """The taker has it."""
    LEFT = "left"
    """The giver let go of it, for good."""
    KEPT = "kept"
    """The giver could not let go; nothing has changed."""
    RETURNED = "returned"
    """The taker could not start or join; the giver has the device again."""
    LOST = "lost"
    """Neither could; nobody has the device."""


class Switch:
    """`device` goes from `giver` (None: from outside) to `taker` (None: away); `split` is that of before. It is told what
    became of each phase and says what is next.
    """

    def __init__(self, giver: Side | None, taker: Side | None, device: int, split: Split) -> None:
        if giver is taker:
            raise ValueError(f"switch: device {device} would go from {giver} to {taker}")
        self.giver, self.taker, self.device, self.before = giver, taker, device, split
        self.phase = Phase.STARTING if giver is None else Phase.LEAVING
        self.side: Side = taker if giver is None else giver
        """Whose turn it is: the side that leaves, or the one that starts and joins."""
        self.outcome: Outcome | None = None
        self.failures: list[str] = []

    @classmethod
    def of(cls, move: Move, device: int, split: Split) -> Switch:
        """`device` goes the way of `move`."""
        sides = (Side.ROLLOUT, Side.TRAINER)
        return cls(*(sides if move is Move.TO_TRAINER else sides[::-1]), device, split)

    @property
    def move(self) -> Move | None:
        """Which way it goes between the sides; None where one of them is not part of it."""
        if self.giver is None or self.taker is None:
            return None
        return Move.TO_ROLLOUT if self.taker is Side.ROLLOUT else Move.TO_TRAINER

    @property
    def name(self) -> str:
        """For events and people: `to rollout`, `to trainer`, `new to rollout`, `away from trainer` …"""
        if self.taker is None:
            return f"away from {self.giver}"
        return f"{'new ' if self.giver is None else ''}to {self.taker}"

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
        return None if self.outcome in (Outcome.LOST, Outcome.LEFT) else self.side

    @property
    def split(self) -> Split:
        """Accelerators that work, before, during and after."""
        if self.phase is Phase.LEAVING or self.outcome in (Outcome.KEPT, Outcome.RETURNED):
            return self.before
        given = self._with(self.before, self.giver, -1)
        return self._with(given, self.taker, 1) if self.outcome is Outcome.MOVED else given

    @staticmethod
    def _with(split: Split, side: Side | None, change: int) -> Split:
        return Split(split.rollout + change * (side is Side.ROLLOUT), split.trainer + change * (side is Side.TRAINER))

    def succeeded(self) -> None:
        """The phase is done."""
        match self.phase:
            case Phase.LEAVING if self.taker is None:
                self._end(Outcome.LEFT)
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
            case Phase.STARTING | Phase.JOINING if self.side is self.taker and self.giver is not None:
                self.phase, self.side = Phase.STARTING, self.giver
            case Phase.STARTING | Phase.JOINING:
                self._end(Outcome.LOST)
            case Phase.OVER:
                raise RuntimeError("switch: a phase failed after the switch was over")

    def _end(self, outcome: Outcome) -> None:
        self.phase, self.outcome = Phase.OVER, outcome
