"""Switches carried out with a real controller, policy and files, by sides that fail where they are told to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import ray

from actors.controller import Controller
from actors.rebalancer import Rebalancer
from actors.side import SideFailed
from rl_system.allocation.decision import Move
from rl_system.allocation.devices import Devices
from rl_system.allocation.observation import Split
from rl_system.allocation.requests import FOLDER, make_request
from rl_system.allocation.switch import Side
from rl_system.config.run import RunConfig
from rl_system.tracking.json_lines import read_lines
from rl_system.tracking.names import unlisted
from rl_system.tracking.tracker import Tracker


class Members:
    """A side whose members are numbers. fails: names of the methods that fail the next time they are called."""

    def __init__(self, side: Side, occupied: dict[int, Side], fails: set[str]) -> None:
        self.side, self.occupied, self.fails = side, occupied, fails
        self.calls: list[str] = []

    async def start_member(self, device: int) -> None:
        assert device not in self.occupied, "two sides have one device"
        self._try("start_member")
        self.occupied[device] = self.side

    async def join(self, device: int) -> None:
        assert self.occupied[device] is self.side
        try:
            self._try("join")
        except SideFailed:
            del self.occupied[device]
            raise

    async def release(self, device: int) -> None:
        assert self.occupied[device] is self.side
        self._try("release")
        del self.occupied[device]

    def _try(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            self.fails.remove(name)
            raise SideFailed(f"{name} was told to fail")


class Cluster:
    """The accelerators of a run on nodes that a test adds and drains."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self.placed = {device: "node" for side in Side for device in devices.of(side)}
        self.usable = {"node"}

    async def look(self) -> None:
        """Nothing changes but by the test's hand."""


class World:
    """A run of four accelerators without its workers and trainers."""

    def __init__(self, directory: Path, split: Split, elastic: bool = False) -> None:
        values = {"rollout": split.rollout, "trainer": split.trainer, "mode": "advise", "elastic": elastic}
        self.config = RunConfig.model_validate(
            {
                "name": "run",
                "output": directory,
                "allocation": values,
                "tracking": {"wandb": "disabled", "progress": False},
            }
        )
        self.config.directory.mkdir(parents=True)
        self.tracker = Tracker(self.config)
        self.devices = Devices(split)
        self.occupied = self.owned()
        self.sides = {side: Members(side, self.occupied, set()) for side in Side}
        self.controller = Controller.remote(self.config, None)
        self.cluster = Cluster(self.devices)
        self.rebalancer = Rebalancer(self.config, self.controller, self.cluster, self.sides, self.tracker)
        self.step = 0

    async def steps(self, count: int) -> dict[str, float]:
        """So many steps of a run, as its main loop makes them; metrics of the last."""
        for _ in range(count):
            beside = await self.rebalancer.at_boundary()
            if beside is not None:
                await beside
            self.step += 1
            metrics = await self.rebalancer.consult(100.0, "tree")
            assert unlisted(metrics) == []
        return metrics

    def owned(self) -> dict[int, Side]:
        return {device: side for side in Side for device in self.devices.of(side)}

    def events(self, kind: str) -> list[dict]:
        return [event for event in read_lines(self.config.directory / "events.jsonl") if event["event"] == kind]

    def close(self) -> None:
        self.tracker.close()
        ray.kill(self.controller)


@pytest.fixture
def world(local_ray, tmp_path):
    world = World(tmp_path, Split(2, 2))
    yield world
    world.close()


@pytest.fixture
def elastic_world(local_ray, tmp_path):
    world = World(tmp_path, Split(2, 1), elastic=True)
    yield world
    world.close()


@pytest.fixture
def training_world(local_ray, tmp_path):
    world = World(tmp_path, Split(1, 3))
    yield world
    world.close()


@pytest.mark.parametrize("move, split", [(Move.TO_TRAINER, Split(1, 3)), (Move.TO_ROLLOUT, Split(3, 1))])
def test_a_request_moves_one_accelerator_and_says_what_it_cost(world, move, split):
    make_request(world.config.directory, move, 1)
    metrics = asyncio.run(world.steps(4))
    assert world.devices.split == split
    assert (metrics["controller/rollout"], metrics["controller/trainer"]) == split
    assert (metrics["controller/switches"], metrics["controller/switching"]) == (1.0, 0.0)
    [asked], [began], [finished] = map(world.events, ("rebalance_request", "switch_began", "switch_finished"))
    assert asked["accepted"] and began["move"] == move and "requested" in began["reason"]
    assert finished["outcome"] == "moved" and finished["split"] == list(split)
    assert 0 <= finished["standstill_s"] <= finished["cost_s"] <= finished["seconds"] + finished["standstill_s"]


def test_a_request_for_two_is_carried_out_one_after_the_other(training_world):
    make_request(training_world.config.directory, Move.TO_ROLLOUT, 2)
    asyncio.run(training_world.steps(6))
    assert training_world.devices.split == Split(3, 1)
    assert len(training_world.events("switch_finished")) == 2


@pytest.mark.parametrize(
    "fails, outcome, split",
    [
        ({Side.TRAINER: {"start_member"}}, "returned", Split(2, 2)),
        ({Side.TRAINER: {"join"}}, "returned", Split(2, 2)),
        ({Side.TRAINER: {"join"}, Side.ROLLOUT: {"start_member"}}, "lost", Split(1, 2)),
        ({Side.TRAINER: {"start_member"}, Side.ROLLOUT: {"join"}}, "lost", Split(1, 2)),
    ],
)
def test_a_failure_on_the_way_to_training_leaves_a_run_whose_devices_have_one_owner(world, fails, outcome, split):
    for side, names in fails.items():
        world.sides[side].fails |= names
    make_request(world.config.directory, Move.TO_TRAINER, 1)
    metrics = asyncio.run(world.steps(5))
    [finished] = world.events("switch_finished")
    assert finished["outcome"] == outcome and len(finished["failures"]) == sum(map(len, fails.values()))
    assert world.devices.split == split and metrics["controller/failed_switches"] == 1.0
    assert world.occupied == world.owned()


@pytest.mark.parametrize(
    "fails, outcome, split",
    [
        ({Side.TRAINER: {"release"}}, "kept", Split(2, 2)),
        ({Side.ROLLOUT: {"start_member"}}, "returned", Split(2, 2)),
        ({Side.ROLLOUT: {"join"}}, "returned", Split(2, 2)),
        ({Side.ROLLOUT: {"join"}, Side.TRAINER: {"join"}}, "lost", Split(2, 1)),
    ],
)
def test_a_failure_on_the_way_to_generation_leaves_a_run_whose_devices_have_one_owner(world, fails, outcome, split):
    for side, names in fails.items():
        world.sides[side].fails |= names
    make_request(world.config.directory, Move.TO_ROLLOUT, 1)
    asyncio.run(world.steps(5))
    [finished] = world.events("switch_finished")
    assert finished["outcome"] == outcome
    assert world.devices.split == split
    assert world.occupied == world.owned()


def test_a_request_beyond_the_bounds_is_refused_with_its_reason_and_the_run_goes_on(world):
    make_request(world.config.directory, Move.TO_TRAINER, 2)
    metrics = asyncio.run(world.steps(3))
    [answer] = world.events("rebalance_request")
    assert not answer["accepted"] and "allocation.min_rollout is 1" in answer["reason"]
    assert metrics["controller/refused_requests"] == 1.0 and world.devices.split == Split(2, 2)


def test_requests_from_before_the_run_are_refused(world):
    make_request(world.config.directory, Move.TO_TRAINER, 1)

    async def scenario() -> None:
        await world.rebalancer.discard_requests()
        await world.steps(3)

    asyncio.run(scenario())
    [answer] = world.events("rebalance_request")
    assert not answer["accepted"] and "before the run started" in answer["reason"]
    assert not world.events("switch_began")


def test_a_run_that_ends_carries_its_switch_to_the_end(world):
    make_request(world.config.directory, Move.TO_TRAINER, 1)

    async def scenario() -> None:
        await world.steps(1)
        await world.rebalancer.at_boundary()
        assert world.rebalancer.switch is not None
        await world.rebalancer.settle()

    asyncio.run(scenario())
    assert world.devices.split == Split(1, 3) and len(world.events("switch_finished")) == 1


def test_a_malformed_file_is_refused_and_the_request_beside_it_is_served(world):
    make_request(world.config.directory, Move.TO_TRAINER, 1)
    (world.config.directory / FOLDER / "9.json").write_text("{")
    asyncio.run(world.steps(3))
    answers = {event["request"]: event["accepted"] for event in world.events("rebalance_request")}
    assert answers.pop("9") is False and list(answers.values()) == [True]
    assert world.devices.split == Split(1, 3)


def test_a_device_that_joins_the_cluster_is_taken_in_and_one_whose_node_drains_is_given_up(elastic_world):
    world = elastic_world

    async def scenario() -> None:
        await world.steps(2)
        assert world.devices.split == Split(2, 1)
        world.cluster.placed[3] = "new"
        world.cluster.usable.add("new")
        metrics = await world.steps(2)
        assert world.devices.split == Split(3, 1) and metrics["controller/rollout"] == 3
        world.cluster.usable.remove("new")
        metrics = await world.steps(2)
        assert world.devices.split == Split(2, 1) and metrics["controller/switches"] == 2

    asyncio.run(scenario())
    began, finished = world.events("switch_began"), world.events("switch_finished")
    assert [event["change"] for event in began] == ["new to rollout", "away from rollout"]
    assert [event["outcome"] for event in finished] == ["moved", "left"]
    assert world.occupied == world.owned()


def test_the_last_trainers_node_drains_and_a_rollout_worker_stands_in_for_it(elastic_world):
    world = elastic_world
    world.cluster.placed[2] = "old"

    async def scenario() -> None:
        await world.steps(6)

    asyncio.run(scenario())
    assert world.devices.split == Split(1, 1) and world.devices.of(Side.TRAINER) == [1]
    assert [event["change"] for event in world.events("switch_finished")] == ["to trainer", "away from trainer"]
    assert world.occupied == world.owned()


def test_a_new_device_that_does_not_come_up_is_tried_once(elastic_world):
    world = elastic_world
    world.cluster.placed[3] = "new"
    world.cluster.usable.add("new")
    world.sides[Side.ROLLOUT].fails.add("start_member")
    metrics = asyncio.run(world.steps(5))
    [finished] = world.events("switch_finished")
    assert finished["outcome"] == "lost" and metrics["controller/failed_switches"] == 1
    assert world.devices.split == Split(2, 1) and world.occupied == world.owned()
