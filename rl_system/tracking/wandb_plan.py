"""Which rows W&B still has to be sent, and into which of its runs, so that it holds every row once and only once.

`metrics.jsonl` and the evaluations in `events.jsonl` are the journal of a run; W&B is fed from it. A row's place in the journal
is its `_step` in W&B. What a process handed over before it ended may be anywhere by now: lost in a buffer, in an offline file,
or on a server, where nothing can be taken back. So

- what is in offline files that nobody has uploaded counts as not sent: the files are replaced as a whole;
- what is on a server, and still is what the journal says, is gone on from. How much that is, the server tells;
- where a server may have rows that the journal does not (steps that are done again after a kill), a new W&B run takes
  the place of the old one and gets everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Session:
    """What one process handed to W&B. run_id: of W&B's run. rows: fingerprints by place in the journal; None where nothing is
    known about them.

    reached: whether any of it may be on a server. whole: whether all of it is, for certain.
    """

    run_id: str
    project: str
    rows: Mapping[int, str] | None = field(default_factory=dict)
    reached: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """run_id: of W&B's run; None for a new one, which takes the place of run `replaces` if that is not None, and `reason` why.

    first: place of the first row to send; None: as many as the server has, which is at most `handed`.
    """

    run_id: str | None
    first: int | None = 0
    handed: int = 0
    replaces: str | None = None
    reason: str = ""


def plan_feed(sessions: Sequence[Session], rows: Sequence[str], project: str, *, online: bool) -> Plan:
    """What a process that opens W&B now has to do. sessions: of earlier ones, in order. rows: fingerprints of the journal."""
    own = [session for session in sessions if session.project == project]
    reached = [session for session in own if session.reached]
    if not reached:
        return Plan(own[-1].run_id if own else None)
    run_id = reached[-1].run_id
    line = [session for session in reached if session.run_id == run_id]

    def anew(reason: str) -> Plan:
        return Plan(None, replaces=run_id, reason=reason)

    if any(session.rows is None for session in line):
        return anew("what it holds is not known")
    handed = {place: print_ for session in line for place, print_ in session.rows.items()}
    if any(place >= len(rows) or rows[place] != print_ for place, print_ in handed.items()):
        return anew("it holds steps that were undone")
    if sorted(handed) != list(range(len(handed))):
        return anew("what it holds is not known")
    if all(session.whole for session in line):
        return Plan(run_id, first=len(handed), handed=len(handed))
    if online:
        return Plan(run_id, first=None, handed=len(handed))
    return anew("how much of it arrived cannot be asked without a connection")
