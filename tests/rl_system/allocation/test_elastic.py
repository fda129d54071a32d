"""Devices that come and go with the nodes of a cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.allocation.devices import Devices
from rl_system.allocation.elastic import next_change
from rl_system.allocation.observation import Split
from rl_system.allocation.switch import Side, Switch


def change(devices: Devices, placed: dict[int, str], usable: str, given_up=None, side=Side.ROLLOUT) -> Switch | None:
    return next_change(devices, placed, set(usable), given_up or {}, lambda split: side)


def on(nodes: str) -> dict[int, str]:
    """Device i is on the node nodes[i]; a dot: nowhere."""
    return {device: node for device, node in enumerate(nodes) if node != "."}


def test_nothing_changes_while_every_device_is_where_it_can_stay():
    assert change(Devices(Split(2, 2)), on("aabb"), "ab") is None


@pytest.mark.parametrize("side", Side)
def test_a_new_device_goes_to_the_side_that_it_serves_best(side):
    switch = change(Devices(Split(2, 2)), on("aaaab"), "ab", side=side)
    assert (switch.giver, switch.taker, switch.device) == (None, side, 4)


@pytest.mark.parametrize("nodes, usable", [("aaab", "a"), ("aaa.", "a")])
def test_a_device_whose_node_drains_or_is_gone_leaves_its_side(nodes, usable):
    switch = change(Devices(Split(2, 2)), on(nodes), usable)
    assert (switch.giver, switch.taker, switch.device) == (Side.TRAINER, None, 3)


def test_what_leaves_goes_before_what_comes():
    switch = change(Devices(Split(2, 2)), on("abaac"), "ac")
    assert (switch.giver, switch.taker, switch.device) == (Side.ROLLOUT, None, 1)


def test_the_last_device_of_a_side_leaves_only_once_another_stands_in_for_it():
    devices = Devices(Split(3, 1))
    switch = change(devices, on("aaab"), "a")
    assert (switch.giver, switch.taker, switch.device) == (Side.ROLLOUT, Side.TRAINER, 2)
    devices.free(2)
    devices.claim(2, Side.TRAINER)
    switch = change(devices, on("aaab"), "a")
    assert (switch.giver, switch.taker, switch.device) == (Side.TRAINER, None, 3)


def test_a_new_device_stands_in_for_the_last_one_of_a_side_wherever_it_would_serve_best():
    switch = change(Devices(Split(3, 1)), on("aaabc"), "ac", side=Side.ROLLOUT)
    assert (switch.giver, switch.taker, switch.device) == (None, Side.TRAINER, 4)


def test_a_run_that_cannot_do_without_any_of_its_devices_keeps_them():
    assert change(Devices(Split(1, 1)), on("ab"), "a") is None


def test_a_device_that_neither_side_could_use_is_not_tried_again_where_it_is():
    assert change(Devices(Split(1, 1)), on("aab"), "ab", {2: "b"}) is None
    assert change(Devices(Split(1, 1)), on("aac"), "ac", {2: "b"}).device == 2


@given(
    st.integers(1, 4), st.integers(1, 4), st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc.")), max_size=12),
    st.lists(st.sets(st.sampled_from("abc")), min_size=1, max_size=12), st.sampled_from(list(Side)),
)  # fmt: skip
def test_however_the_cluster_changes_both_sides_keep_a_device_and_every_device_has_one_owner(
    rollout, trainer, moves, weather, side
):
    devices, placed = Devices(Split(rollout, trainer)), dict.fromkeys(range(rollout + trainer), "a")
    for usable in weather:
        for device, node in moves:
            if node == ".":
                placed.pop(device, None)
            else:
                placed[device] = node
        for _ in range(30):
            switch = next_change(devices, placed, usable, {}, lambda split: side)
            if switch is None:
                break
            if switch.giver is not None:
                devices.free(switch.device)
            if switch.taker is not None:
                devices.claim(switch.device, switch.taker)
            assert min(devices.split) >= 1
            owned = devices.of(Side.ROLLOUT) + devices.of(Side.TRAINER)
            assert len(owned) == len(set(owned))
        else:
            raise AssertionError("it never comes to rest")
