"""Nodes are asked for room on a real Ray cluster, after accelerators are reserved and before anything starts there."""

import asyncio
import time

import pytest
import ray

from actors import nodes
from actors.cluster import Accelerators
from actors.node_memory import room_of_a_newcomer, rooms
from actors.nodes import Newcomers, driver_node, require_fit
from rl_system.config.load import build_config
from rl_system.errors import UserError
from rl_system.machine.needs import RunNeeds
from rl_system.shared_files import SharedFiles

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture
def shared(tmp_path) -> SharedFiles:
    return SharedFiles.mark(tmp_path, tmp_path)


def needs_of(parameters: int) -> RunNeeds:
    return RunNeeds(build_config({"name": "run", "allocation": {"rollout": 2, "trainer": 1}}), parameters)


def check(shared: SharedFiles, parameters: int) -> None:
    needs = needs_of(parameters)

    async def reserve_and_check() -> None:
        accelerators = await Accelerators.reserve(needs.config)
        try:
            await accelerators.look()
            await require_fit([], shared, rooms(needs, accelerators))
        finally:
            accelerators.release()

    asyncio.run(reserve_and_check())


def test_a_node_that_has_the_memory_for_what_is_placed_on_it_passes(shared):
    check(shared, parameters=1000)


def test_a_node_without_the_memory_for_what_is_placed_on_it_is_named(shared):
    (node,) = ray.nodes()
    with pytest.raises(UserError) as refused:
        check(shared, parameters=1 << 40)
    text = str(refused.value)
    assert text.startswith(f"node {node['NodeManagerAddress']} has not enough room: about ") and "2 rollout workers" in text
    assert "allocation.trainer 1" in text and "\n" not in text


def test_a_node_that_does_not_answer_is_named_and_not_waited_for_without_end(shared, monkeypatch):
    monkeypatch.setattr(nodes, "ANSWER_TIMEOUT_S", 0.0)
    with pytest.raises(UserError, match="did not start a process within 0 s"):
        check(shared, parameters=1000)


@pytest.mark.parametrize(("parameters", "fit"), [(1000, True), (1 << 40, False)])
def test_a_node_that_joins_is_taken_in_where_it_has_room_for_one_more_actor(shared, parameters, fit):
    newcomers, deadline = Newcomers(shared, room_of_a_newcomer(needs_of(parameters))), time.monotonic() + 60
    while not newcomers.is_fit(driver_node()) and not newcomers._known and time.monotonic() < deadline:
        time.sleep(0.1)
    assert newcomers._known == {driver_node(): fit}
