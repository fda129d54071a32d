"""The fleet's decisions about workers that break, join and leave, with stand-ins for workers, trainer and pool: actors that
remember what they were given."""

import asyncio
from pathlib import Path

import pytest
import ray

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

    def set_workers(self, workers: dict) -> None:
        self.workers = workers

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
