"""The fleet's decisions about workers that break, join and leave, with stand-ins for workers, trainer and pool: actors that
remember what they were given."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import ray

from actors import fleet as fleet_module
from actors.fleet import RolloutFleet
from actors.side import SideFailed
from rl_system.config.run import RunConfig
from rl_system.records import Weights

REPORT = {"seconds": 1.0, "paused_s": 0.0, "bytes": 1.0}


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self) -> None:
        self.versions: list[int] = []

    def ready(self) -> None:
        pass

    def update_weights(self, weights: Weights) -> dict[str, float]:
        self.versions.append(weights.version)
        return REPORT

    def served(self) -> list[int]:
        return self.versions

    def statistics(self) -> dict[str, float]:
        return {"generated_tokens": float(sum(self.versions))}

    def close(self) -> None:
        pass


@ray.remote(num_cpus=0)
class SlowWorker:
    """A worker that takes its time for everything but a sign of life."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.versions, self.looks = seconds, [], 0

    async def ready(self) -> None:
        self.looks += 1

    async def update_weights(self, weights: Weights) -> dict[str, float]:
        await asyncio.sleep(self.seconds)
        self.versions.append(weights.version)
        return REPORT

    async def served(self) -> list[int]:
        return self.versions

    async def looked_at(self) -> int:
        return self.looks

    async def prompt_logprobs(self, token_ids: np.ndarray) -> np.ndarray:
        await asyncio.sleep(self.seconds)
        return np.full(len(token_ids), -1.0, np.float32)

    async def freeze(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    async def statistics(self) -> dict[str, float]:
        return {"generated_tokens": 1.0}

    async def close(self) -> None:
        pass


@ray.remote(num_cpus=0)
class Sender:
    """A trainer that broadcasts its parameters, and may fail to, a number of times."""

    def __init__(self, version: int, failures: int = 0) -> None:
        self.version, self.failures, self.broadcasts = version, failures, []

    def broadcast(self, workers: list) -> list[dict[str, float]]:
        self.broadcasts.append(len(workers))
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the broadcast broke")
        return ray.get([worker.update_weights.remote(Weights(self.version)) for worker in workers])

    def done(self) -> list[int]:
        return self.broadcasts


@ray.remote(num_cpus=0)
class Pool:
    def __init__(self) -> None:
        self.workers: dict = {}
        self.told = 0

    def set_workers(self, workers: dict) -> None:
        self.workers = workers
        self.told += 1

    def times_told(self) -> int:
        return self.told

    def vacate(self, device: int) -> None:
        pass

    def known(self) -> list[int]:
        return sorted(self.workers)


class Fleet(RolloutFleet):
    def _create(self, device: int):
        return Worker.remote()


@pytest.fixture
def fleet(local_ray, tmp_path: Path):
    async def noted() -> None:
        pass

    fleet = Fleet(RunConfig.model_validate({"name": "run", "output": tmp_path}), tmp_path, None, Pool.remote(), noted)
    asyncio.run(fleet.start([0, 1], version=0))
    yield fleet
    asyncio.run(fleet.close())
    ray.kill(fleet.pool)


def served(fleet: RolloutFleet) -> dict[int, list[int]]:
    return {device: ray.get(worker.served.remote()) for device, worker in fleet.workers.items()}


def test_a_worker_that_breaks_in_an_update_is_replaced_and_serves_what_the_others_do(fleet):
    ray.kill(fleet.workers[1])
    report = asyncio.run(fleet.push(Weights(1)))
    assert report["seconds"] == 1.0 and fleet.replaced == 1
    assert served(fleet) == {0: [1], 1: [1]} and ray.get(fleet.pool.known.remote()) == [0, 1]


def test_a_broadcast_that_a_broken_worker_spoilt_goes_to_its_successor_and_all_others(fleet):
    ray.kill(fleet.workers[0])
    sender = Sender.remote(1, failures=1)
    asyncio.run(fleet.push(Weights(1, sender=sender)))
    assert fleet.replaced == 1
    # The failed one, the successor alone, and then all of them again: whoever was served is served the same.
    assert ray.get(sender.done.remote()) == [2, 1, 2]
    assert served(fleet) == {0: [1, 1], 1: [1]}
    ray.kill(sender)


def test_a_broadcast_that_fails_while_every_worker_is_whole_is_an_error(fleet):
    sender = Sender.remote(1, failures=1)
    with pytest.raises(RuntimeError, match="the broadcast broke"):
        asyncio.run(fleet.push(Weights(1, sender=sender)))
    assert fleet.replaced == 0
    ray.kill(sender)


def test_a_worker_that_joins_gets_the_newest_weights_before_it_has_turns(fleet):
    async def scenario() -> None:
        await fleet.push(Weights(1))
        await fleet.push(Weights(2))
        await fleet.start_member(2)
        assert await fleet.pool.known.remote() == [0, 1]
        await fleet.join(2)

    asyncio.run(scenario())
    assert served(fleet) == {0: [1, 2], 1: [1, 2], 2: [2]} and ray.get(fleet.pool.known.remote()) == [0, 1, 2]


def test_weights_of_a_trainer_that_left_are_not_asked_for_again(fleet):
    """The sender of version 1 is gone: a worker that joins then gets it from another."""
    gone, stays = Sender.remote(1), Sender.remote(1)

    async def scenario() -> None:
        await fleet.push(Weights(1, sender=gone))
        await fleet.renew(Weights(1, sender=stays))
        ray.kill(gone)
        await fleet.start_member(2)
        await fleet.join(2)

    asyncio.run(scenario())
    assert served(fleet) == {0: [1], 1: [1], 2: [1]}
    ray.kill(stays)


def test_a_worker_whose_weights_cannot_be_had_does_not_join_and_leaves_no_trace(fleet):
    async def scenario() -> None:
        sender = Sender.remote(1)
        await fleet.push(Weights(1, sender=sender))
        ray.kill(sender)
        await fleet.start_member(2)
        with pytest.raises(SideFailed, match="took no weights"):
            await fleet.join(2)

    asyncio.run(scenario())
    assert sorted(fleet.workers) == [0, 1] == ray.get(fleet.pool.known.remote())


def test_what_a_released_worker_had_done_still_counts(fleet):
    async def scenario() -> dict[str, float]:
        await fleet.push(Weights(3))
        await fleet.release(0)
        return await fleet.totals()

    assert asyncio.run(scenario()) == {"generated_tokens": 6.0}
    assert list(fleet.workers) == [1] == ray.get(fleet.pool.known.remote())


class SlowFleet(RolloutFleet):
    def _create(self, device: int):
        return SlowWorker.remote(1.0)


@pytest.fixture
def slow_fleet(local_ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two workers that take a second for what may take half of one, and are looked at all the time."""
    monkeypatch.setattr(fleet_module, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(fleet_module, "HEARTBEAT_TIMEOUT_S", 2.0)
    monkeypatch.setattr(fleet_module, "LOOK_INTERVAL_S", 0.1)
    monkeypatch.setattr(fleet_module, "CLOSE_TIMEOUT_S", 1.0)

    async def noted() -> None:
        pass

    config = RunConfig.model_validate({"name": "run", "output": tmp_path, "weights": {"timeout_s": 0.5}})
    fleet = SlowFleet(config, tmp_path, None, Pool.remote(), noted)
    asyncio.run(fleet.start([0, 1], version=0))
    yield fleet
    asyncio.run(fleet.close())
    ray.kill(fleet.pool)


@contextlib.asynccontextmanager
async def watched(fleet: RolloutFleet):
    watch = asyncio.create_task(fleet.watch())
    yield
    assert not watch.done(), watch.exception()
    watch.cancel()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await holds():
            await asyncio.sleep(0.05)


def test_a_worker_that_is_slow_to_take_weights_but_lives_is_not_replaced(slow_fleet):
    before = dict(slow_fleet.workers)
    asyncio.run(slow_fleet.push(Weights(1)))
    assert slow_fleet.replaced == 0 and slow_fleet.workers == before
    assert served(slow_fleet) == {0: [1], 1: [1]}


def test_a_worker_that_freezes_while_it_takes_weights_is_replaced_by_one_that_serves_them(slow_fleet):
    async def scenario() -> None:
        push = asyncio.create_task(slow_fleet.push(Weights(1)))
        await asyncio.sleep(0.3)
        slow_fleet.workers[1].freeze.remote()
        await push

    asyncio.run(scenario())
    assert slow_fleet.replaced == 1 and served(slow_fleet) == {0: [1], 1: [1]}


def test_a_frozen_worker_is_found_by_its_heartbeat_and_holds_up_no_other(slow_fleet):
    async def scenario() -> None:
        frozen, other = slow_fleet.workers[0], slow_fleet.workers[1]
        async with watched(slow_fleet):
            frozen.freeze.remote()
            seen = await other.looked_at.remote()
            await until(lambda: _is(slow_fleet.workers[0] != frozen))
            assert await other.looked_at.remote() > seen + 3

    asyncio.run(scenario())
    assert slow_fleet.replaced == 1 and ray.get(slow_fleet.pool.known.remote()) == [0, 1]


async def _is(value: bool) -> bool:
    return value


def test_workers_that_live_are_named_to_the_pool_again_and_again(slow_fleet):
    """So that one which the pool had no answer from, and which lives all the same, is in use again."""

    async def scenario() -> None:
        async with watched(slow_fleet):
            told = await slow_fleet.pool.times_told.remote()
            async with asyncio.timeout(30):
                while await slow_fleet.pool.times_told.remote() < told + 3:
                    await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert slow_fleet.replaced == 0


def test_an_error_of_the_watch_is_raised_as_it_is(slow_fleet, monkeypatch):
    async def fails(*_) -> None:
        raise RuntimeError("no successor")

    async def scenario() -> None:
        monkeypatch.setattr(slow_fleet, "_replace", fails)
        ray.kill(slow_fleet.workers[0])
        with pytest.raises(RuntimeError, match="no successor"):
            await asyncio.wait_for(slow_fleet.watch(), 30)

    asyncio.run(scenario())


def test_every_worker_is_scored_and_one_that_is_gone_or_late_costs_its_score_alone(slow_fleet, monkeypatch):
    tokens = np.arange(3)
    assert len(asyncio.run(slow_fleet.prompt_logprobs(tokens))) == 2
    ray.kill(slow_fleet.workers[0])
    (score,) = asyncio.run(slow_fleet.prompt_logprobs(tokens))
    assert score.tolist() == [-1.0] * 3
    monkeypatch.setattr(fleet_module, "SCORE_LIMIT_S", 0.1)
    assert asyncio.run(slow_fleet.prompt_logprobs(tokens)) == []
