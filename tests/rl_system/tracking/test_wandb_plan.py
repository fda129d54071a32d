"""What W&B is sent after whatever happened to the process before."""

import pytest

from rl_system.tracking.wandb_plan import Plan, Session, plan_feed

ROWS = ["a", "b", "c", "d"]


def session(rows="abc", run="one", **kinds) -> Session:
    return Session(run, "project", None if rows is None else dict(enumerate(rows)), **kinds)


ARRIVED = {"reached": True, "whole": True}
PERHAPS = {"reached": True}


@pytest.mark.parametrize(
    ("sessions", "online", "expected"),
    [
        # Nothing was there before, or nothing that anybody but this machine has seen: everything, under the same id.
        ([], False, Plan(None)),
        ([], True, Plan(None)),
        ([session()], False, Plan("one")),
        ([session("abxyz"), session("ab")], True, Plan("one")),
        # All of it is on the server, and still true: the rest.
        ([session("abc", **ARRIVED)], False, Plan("one", first=3, handed=3)),
        ([session("abc", **ARRIVED)], True, Plan("one", first=3, handed=3)),
        ([session("ab", **ARRIVED), session("", **ARRIVED)], True, Plan("one", first=2, handed=2)),
        ([session("abcd", **ARRIVED)], True, Plan("one", first=4, handed=4)),
        # Some of it is: the server tells how much.
        ([session("abc", **PERHAPS)], True, Plan("one", first=None, handed=3)),
        ([session("ab", **ARRIVED), session("ab", **PERHAPS)], True, Plan("one", first=None, handed=2)),
        ([session("abc", **PERHAPS), session("abcd")], True, Plan("one", first=None, handed=3)),
        # What was undone cannot be taken back.
        ([session("abx", **ARRIVED)], True, Plan(None, replaces="one", reason="it holds steps that were undone")),
        ([session("abcdef", **PERHAPS)], True, Plan(None, replaces="one", reason="it holds steps that were undone")),
        ([session("abx", **ARRIVED)], False, Plan(None, replaces="one", reason="it holds steps that were undone")),
        # Of what is not known, nothing is assumed.
        ([session(None, **PERHAPS)], True, Plan(None, replaces="one", reason="what it holds is not known")),
        ([session("abc", **PERHAPS)], False,
         Plan(None, replaces="one", reason="how much of it arrived cannot be asked without a connection")),
        # A W&B run that took the place of another is the one to go on from.
        ([session("axy", **PERHAPS), session("abc", run="two", **ARRIVED)], True, Plan("two", first=3, handed=3)),
    ],
)  # fmt: skip
def test_every_row_is_sent_that_no_server_has_and_none_that_one_may_have(sessions, online, expected):
    assert plan_feed(sessions, ROWS, "project", online=online) == expected


def test_what_lies_in_another_project_says_nothing_about_this_one():
    assert plan_feed([session("abc", **ARRIVED)], ROWS, "elsewhere", online=True) == Plan(None)


def test_a_gap_in_what_was_handed_over_is_not_trusted():
    gap = Session("one", "project", {0: "a", 2: "c"}, reached=True, whole=True)
    assert plan_feed([gap], ROWS, "project", online=True).replaces == "one"
