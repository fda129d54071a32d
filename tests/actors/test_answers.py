"""What is made of an actor that does not answer, with real actors that end, and Ray's own list of what can happen."""

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import ray.exceptions

from actors.answers import VERDICTS, Gone, NoAnswer, answer_to, verdict
from actors.engine.errors import EngineBroken, WeightsRejected

ROOT = Path(__file__).parents[2]


@ray.remote(num_cpus=0)
class Asked:
    def well(self) -> int:
        return 7

    def broken(self) -> None:
        raise EngineBroken("the engine died")

    def refuses(self) -> None:
        raise WeightsRejected("not those of the model")

    def late(self) -> None:
        raise TimeoutError("somebody else did not answer")

    def ask(self, other: ray.actor.ActorHandle) -> None:
        ray.get(other.well.remote())

    async def wait(self) -> None:
        await asyncio.sleep(60)


def test_every_error_that_ray_knows_has_a_verdict():
    known = [each for each in vars(ray.exceptions).values() if inspect.isclass(each)]
    errors = {each for each in known if issubclass(each, ray.exceptions.RayError)} - {ray.exceptions.RayError}
    assert errors == VERDICTS.keys()


def test_an_error_that_ray_adds_is_judged_as_the_one_it_derives_from():
    class NodeBurnt(ray.exceptions.NodeDiedError):
        pass

    assert verdict(NodeBurnt("fire")) is Gone
    assert verdict(ray.exceptions.OutOfMemoryError("full")) is Gone
    assert verdict(ray.exceptions.GetTimeoutError("late")) is NoAnswer
    assert verdict(ValueError("x")) is None


def test_a_call_ends_with_its_answer_or_with_what_its_silence_means(local_ray):
    async def scenario() -> None:
        asked = Asked.remote()
        assert await answer_to(asked.well.remote()) == 7
        with pytest.raises(Gone, match="the engine died"):
            await answer_to(asked.broken.remote())
        with pytest.raises(WeightsRejected):
            await answer_to(asked.refuses.remote())
        waiting = asked.wait.remote()
        with pytest.raises(NoAnswer, match="no answer within 0.2 s"):
            await answer_to(waiting, 0.2)
        ray.cancel(waiting)
        with pytest.raises(NoAnswer):
            await answer_to(waiting)
        ray.kill(asked)
        with pytest.raises(Gone):
            await answer_to(asked.well.remote())

    asyncio.run(scenario())


def test_an_actor_that_met_a_dead_one_is_not_dead_itself(local_ray):
    async def scenario() -> None:
        asked, dead = Asked.remote(), Asked.remote()
        await answer_to(dead.well.remote())
        ray.kill(dead)
        with pytest.raises(ray.exceptions.RayActorError):  # as it is: neither Gone nor NoAnswer
            await answer_to(asked.ask.remote(dead))
        with pytest.raises(TimeoutError, match="somebody else"):
            await answer_to(asked.late.remote(), 30.0)
        assert await answer_to(asked.well.remote()) == 7

    asyncio.run(scenario())


OUT_OF_MEMORY = """
import asyncio, sys, time
import ray
from actors.answers import Gone, answer_to

@ray.remote(num_cpus=0)
class Hungry:
    async def work(self):
        await asyncio.sleep(60)

async def main():
    try:
        await answer_to(Hungry.remote().work.remote())
    except Gone as gone:
        print("gone:", gone, "because", type(gone.__cause__).__name__)

ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         _system_config={"memory_usage_threshold": 0.001, "memory_monitor_refresh_ms": 100})
asyncio.run(main())
"""


def test_an_actor_that_rays_memory_monitor_ended_is_gone():
    """A Ray of its own, for which the machine is always full."""
    result = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert "gone: " in result.stdout and "low on memory" in result.stdout, result.stdout + result.stderr
    assert "because OutOfMemoryError" in result.stdout
    assert result.stdout.count("\n") == 1, "the reason is one line"
