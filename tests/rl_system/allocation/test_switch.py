"""A switch against the rules it has to keep, over every path it can take."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.decision import Move
from rl_system.allocation.devices import Devices
from rl_system.allocation.observation import Split
from rl_system.allocation.switch import Outcome, Phase, Side, Switch

moves = st.sampled_from(list(Move))


def carried_out(switch: Switch, results: list[bool]) -> Switch:
    for succeeds in results:
        if switch.over:
            break
        switch.succeeded() if succeeds else switch.failed("broke")
    return switch


def test_an_accelerator_leaves_starts_and_joins():
    switch, seen = Switch.of(Move.TO_TRAINER, 1, Split(2, 2)), []
    while not switch.over:
        seen.append((switch.side, switch.phase, switch.split))
        switch.succeeded()
    assert seen == [
        (Side.ROLLOUT, Phase.LEAVING, Split(2, 2)),
        (Side.TRAINER, Phase.STARTING, Split(1, 2)),
        (Side.TRAINER, Phase.JOINING, Split(1, 2)),
    ]
    assert (switch.outcome, switch.split, switch.owner) == (Outcome.MOVED, Split(1, 3), Side.TRAINER)


@pytest.mark.parametrize(
    "results, outcome, split, owner",
    [
        ([False], Outcome.KEPT, Split(2, 2), Side.TRAINER),
        ([True, False, True, True], Outcome.RETURNED, Split(2, 2), Side.TRAINER),
        ([True, True, False, True, True], Outcome.RETURNED, Split(2, 2), Side.TRAINER),
        ([True, False, False], Outcome.LOST, Split(2, 1), None),
        ([True, True, False, True, False], Outcome.LOST, Split(2, 1), None),
    ],
)
def test_a_failure_leads_back_or_on_to_a_state_that_runs(results, outcome, split, owner):
    switch = carried_out(Switch.of(Move.TO_ROLLOUT, 3, Split(2, 2)), results)
    assert (switch.outcome, switch.split, switch.owner) == (outcome, split, owner)
    assert len(switch.failures) == results.count(False)


@pytest.mark.parametrize("move", Move)
def test_every_path_ends_with_one_owner_or_none_and_no_side_below_what_the_move_leaves_it(move):
    least = min(Move.applied(move, Split(2, 2)))
    for results in itertools.product([True, False], repeat=5):
        switch = carried_out(Switch.of(move, 0, Split(2, 2)), list(results))
        assert switch.over
        assert min(switch.split) >= least
        assert sum(switch.split) == (3 if switch.outcome is Outcome.LOST else 4)
        assert (switch.owner is None) == (switch.outcome is Outcome.LOST)


@pytest.mark.parametrize("move", Move)
def test_the_trainers_stand_still_only_while_their_group_is_formed(move):
    switch, standing = Switch.of(move, 0, Split(2, 2)), []
    while not switch.over:
        standing.append(switch.needs_standstill)
        switch.succeeded()
    assert standing == ([False, False, True] if move is Move.TO_TRAINER else [True, False, False])


def test_a_switch_that_is_over_takes_no_more_news():
    switch = carried_out(Switch.of(Move.TO_TRAINER, 0, Split(2, 2)), [False])
    with pytest.raises(RuntimeError, match="over"):
        switch.succeeded()
    with pytest.raises(RuntimeError, match="over"):
        switch.failed("again")


results = st.lists(st.booleans(), min_size=5, max_size=5)


@given(st.integers(2, 6), st.integers(2, 6), st.lists(st.tuples(moves, results)))
def test_over_any_sequence_of_switches_every_device_has_at_most_one_owner_and_the_counts_are_those_of_the_switches(
    rollout, trainer, plan
):
    devices, lost = Devices(Split(rollout, trainer)), 0
    for move, results in plan:
        if min(move.applied(devices.split)) < 1:
            continue
        switch = Switch.of(move, devices.candidate(move), devices.split)
        for succeeds in results:
            if switch.over:
                break
            owner = switch.owner
            switch.succeeded() if succeeds else switch.failed("broke")
            if switch.owner is not owner:
                devices.free(switch.device)
                if switch.owner is not None:
                    devices.claim(switch.device, switch.owner)
            assert devices.owner(switch.device) is switch.owner
        assert devices.split == switch.split
        lost += switch.outcome is Outcome.LOST
        owned = devices.of(Side.ROLLOUT) + devices.of(Side.TRAINER)
        assert len(owned) == len(set(owned)) == rollout + trainer - lost
        assert set(owned) <= set(range(rollout + trainer))


def test_a_move_and_its_opposite_leave_every_device_where_it_was():
    devices = Devices(Split(2, 2))
    for move, side in ((Move.TO_TRAINER, Side.TRAINER), (Move.TO_ROLLOUT, Side.ROLLOUT)):
        device = devices.candidate(move)
        devices.free(device)
        devices.claim(device, side)
    assert (devices.of(Side.ROLLOUT), devices.of(Side.TRAINER)) == ([0, 1], [2, 3])


def test_a_device_that_has_an_owner_cannot_be_claimed_and_one_that_has_none_cannot_be_freed():
    devices = Devices(Split(1, 1))
    with pytest.raises(RuntimeError, match="device 0 was claimed for trainer, but belongs to rollout"):
        devices.claim(0, Side.TRAINER)
    devices.free(0)
    with pytest.raises(RuntimeError, match="nobody owns it"):
        devices.free(0)


def test_a_device_from_outside_starts_and_joins_or_is_given_up():
    switch = carried_out(Switch(None, Side.TRAINER, 7, Split(2, 2)), [True, True])
    assert (switch.outcome, switch.split, switch.owner) == (Outcome.MOVED, Split(2, 3), Side.TRAINER)
    for results in ([False], [True, False]):
        switch = carried_out(Switch(None, Side.ROLLOUT, 7, Split(2, 2)), results)
        assert (switch.outcome, switch.split, switch.owner) == (Outcome.LOST, Split(2, 2), None)


def test_a_device_that_leaves_is_gone_once_its_side_let_go_of_it():
    switch = carried_out(Switch(Side.TRAINER, None, 2, Split(2, 2)), [True])
    assert (switch.outcome, switch.split, switch.owner) == (Outcome.LEFT, Split(2, 1), None)
    switch = carried_out(Switch(Side.TRAINER, None, 2, Split(2, 2)), [False])
    assert (switch.outcome, switch.split, switch.owner) == (Outcome.KEPT, Split(2, 2), Side.TRAINER)


def test_a_switch_says_which_way_it_goes():
    assert [Switch.of(move, 0, Split(2, 2)).move for move in Move] == list(Move)
    assert Switch(None, Side.ROLLOUT, 0, Split(2, 2)).move is Switch(Side.TRAINER, None, 0, Split(2, 2)).move is None
    assert Switch(None, Side.ROLLOUT, 0, Split(2, 2)).name == "new to rollout"
    assert Switch(Side.TRAINER, None, 0, Split(2, 2)).name == "away from trainer"
