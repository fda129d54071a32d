"""Which part of a run was lost, told from whatever error came of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import psutil
import pytest
import ray

from actors.answers import Gone
from actors.losses import loss_behind, watch
from rl_system.errors import UserError
from rl_system.recovery import PartLost

pytestmark = pytest.mark.usefixtures("local_ray")


@ray.remote(num_cpus=0, concurrency_groups={"signs_of_life": 1})
class Busy:
    def work(self, seconds: float) -> None:
        time.sleep(seconds)

    def fail(self) -> None:
        raise RuntimeError("connection closed by peer")

    @ray.method(concurrency_group="signs_of_life")
    def sign_of_life(self) -> int:
        return os.getpid()


@ray.remote(num_cpus=0)
class Other:
    async def ask(self, other) -> None:
        await other[0].sign_of_life.remote()


@pytest.fixture
def busy():
    actor = Busy.remote()
    yield actor
    ray.kill(actor)


def error_of(call) -> Exception:
    with pytest.raises(Exception) as raised:
        ray.get(call)
    return raised.value


def test_a_part_that_dies_is_behind_the_error_of_whoever_asked_it(busy):
    asking = Other.remote()
    os.kill(ray.get(busy.sign_of_life.remote()), signal.SIGKILL)
    error = error_of(asking.ask.remote([busy]))
    lost = asyncio.run(loss_behind(error, {"the busy one": busy, "the other": asking}))
    assert lost.part == "the busy one" and lost.reason
    # Also one that is no part of what is asked, or has been replaced since: what it held is lost.
    assert asyncio.run(loss_behind(error, {"the other": asking})) is not None


def test_a_dead_neighbour_is_behind_what_a_library_says_of_it(busy):
    neighbour = Busy.remote()
    os.kill(ray.get(neighbour.sign_of_life.remote()), signal.SIGKILL)
    error = error_of(busy.fail.remote())
    assert asyncio.run(loss_behind(error, {"rank 0": busy, "rank 1": neighbour})).part == "rank 1"


def test_an_error_of_a_living_part_is_no_loss(busy):
    assert asyncio.run(loss_behind(error_of(busy.fail.remote()), {"the busy one": busy})) is None
    assert asyncio.run(loss_behind(UserError("too many groups failed"), {"the busy one": busy})) is None
    assert asyncio.run(loss_behind(Gone("it was told so"), {"the busy one": busy})) is not None


def test_a_busy_part_is_not_lost_and_a_frozen_one_is(busy):
    async def watched(seconds: float, silence_s: float) -> None:
        await asyncio.wait_for(watch(lambda: {"the busy one": busy}, interval_s=0.1, silence_s=silence_s), seconds)

    pid = ray.get(busy.sign_of_life.remote())
    working = busy.work.remote(4)
    with pytest.raises(TimeoutError):
        asyncio.run(watched(2, silence_s=20))
    ray.get(working)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(PartLost, match="the busy one was lost: no answer within 1 s"):
        asyncio.run(watched(60, silence_s=1))
    ray.kill(busy)  # and can be ended
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_part_that_was_let_go_is_not_missed(busy):
    leaving = Busy.remote()
    parts = {"rank 0": busy, "rank 1": leaving}

    async def let_go() -> None:
        watching = asyncio.ensure_future(watch(lambda: dict(parts), interval_s=0.1, silence_s=5))
        await asyncio.sleep(0.5)
        del parts["rank 1"]
        ray.kill(leaving)
        await asyncio.sleep(1)
        assert not watching.done()
        watching.cancel()

    asyncio.run(let_go())
