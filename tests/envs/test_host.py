"""Worker processes: one bad environment costs its own episode, and the host goes on."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from envs.host import EnvironmentHost
from envs.protocol import Action, EnvironmentFailed
from envs.registry import list_tasks
from rl_system.config.environment import EnvironmentConfig
from rl_system.records import Ending, Task
from tests.envs import breaking, misbehaving

NAME = misbehaving.__name__


def task(behaviour: str) -> Task:
    return Task(NAME, "none", behaviour, "train")


def config(**values: object) -> EnvironmentConfig:
    return EnvironmentConfig(name=NAME, **{"processes": 1, "step_timeout_s": 1.0} | values)


def hosted(body: Callable[[EnvironmentHost], Awaitable[None]], **values: object) -> None:
    async def run() -> None:
        async with EnvironmentHost(config(**values)) as host:
            await body(host)

    asyncio.run(asyncio.wait_for(run(), 60))


async def play(host: EnvironmentHost, behaviour: str) -> float:
    environment = host.environment(task(behaviour))
    try:
        await environment.reset()
        await environment.step(Action(text="hello"))
        observation = await environment.step(Action(text="bye"))
        return (await environment.score(observation.ended)).reward
    finally:
        await environment.close()


async def settled(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_episodes_run_side_by_side(processes: int) -> None:
    async def body(host: EnvironmentHost) -> None:
        start = time.monotonic()
        assert await asyncio.gather(*(play(host, "slow") for _ in range(20))) == [1.0] * 20
        assert time.monotonic() - start < 20 * 0.4 / 2, "the episodes waited for each other"
        assert host.statistics()["environments_open"] == 0

    hosted(body, processes=processes)


def test_environments_are_spread_over_the_processes() -> None:
    async def body(host: EnvironmentHost) -> None:
        environments = [host.environment(task("well")) for _ in range(6)]
        openings = [(await environment.reset())[0].messages[0]["content"] for environment in environments]
        assert sorted(map(openings.count, set(openings))) == [3, 3]
        for environment in environments:
            await environment.close()

    hosted(body, processes=2)


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("behaviour", ["raises", "raises_in_reset", "raises_in_score"])
def test_an_exception_fails_its_episode_alone(behaviour: str, processes: int) -> None:
    async def body(host: EnvironmentHost) -> None:
        good, bad = await asyncio.gather(play(host, "slow"), play(host, behaviour), return_exceptions=True)
        assert good == 1.0 and isinstance(bad, EnvironmentFailed) and "broken on purpose" in str(bad)
        assert host.statistics()["processes_replaced"] == 0

    hosted(body, processes=processes)


@pytest.mark.parametrize("behaviour", ["hangs", "hangs_in_reset"])
def test_a_hung_environment_is_abandoned_and_its_process_replaced(behaviour: str) -> None:
    async def body(host: EnvironmentHost) -> None:
        (old,) = host.process_ids()
        with pytest.raises(EnvironmentFailed, match="longer than 1 s"):
            await play(host, behaviour)
        await settled(lambda: host.process_ids() not in ([], [old]))
        assert await play(host, "well") == 1.0
        await settled(lambda: not alive(old))
        assert host.statistics() == {
            "environments_abandoned": 1,
            "processes_replaced": 1,
            "environments_open": 0,
            "processes": 1,
        }

    hosted(body)


def test_the_others_on_a_process_with_a_hung_environment_finish() -> None:
    async def body(host: EnvironmentHost) -> None:
        other = host.environment(task("well"))
        await other.reset()
        with pytest.raises(EnvironmentFailed):
            await play(host, "hangs")
        await other.step(Action(text="bye"))
        assert (await other.score(Ending.USER_STOP)).reward == 1.0
        await other.close()

    hosted(body)


def test_a_crash_fails_the_episodes_of_its_process_and_the_host_goes_on() -> None:
    async def body(host: EnvironmentHost) -> None:
        outcomes = await asyncio.gather(play(host, "dies"), play(host, "slow"), return_exceptions=True)
        assert all(isinstance(outcome, EnvironmentFailed) for outcome in outcomes)
        await settled(lambda: bool(host.process_ids()))
        assert await play(host, "well") == 1.0
        assert host.statistics()["processes_replaced"] == 1

    hosted(body)


def test_a_process_killed_from_outside_is_replaced() -> None:
    async def body(host: EnvironmentHost) -> None:
        environment = host.environment(task("well"))
        await environment.reset()
        os.kill(host.process_ids()[0], signal.SIGKILL)
        with pytest.raises(EnvironmentFailed, match="died"):
            await environment.step(Action(text="hello"))
        await environment.close()
        await settled(lambda: bool(host.process_ids()))
        assert await play(host, "well") == 1.0

    hosted(body)


@pytest.mark.parametrize("behaviour", ["hangs", "dies"])
def test_environments_that_come_while_the_only_process_is_replaced_wait_for_the_new_one(behaviour: str) -> None:
    async def body(host: EnvironmentHost) -> None:
        with pytest.raises(EnvironmentFailed):
            await play(host, behaviour)
        assert host.process_ids() == []
        assert await asyncio.gather(*(play(host, "well") for _ in range(5))) == [1.0] * 5
        assert host.statistics()["processes_replaced"] == 1

    hosted(body)


def test_where_no_process_can_be_started_episodes_fail_until_one_can() -> None:
    async def body(host: EnvironmentHost) -> None:
        able, unable = host._config, host._config.model_copy(update={"start_timeout_s": 0.01})
        host._config = unable
        with pytest.raises(EnvironmentFailed):
            await play(host, "dies")
        for _ in range(2):
            with pytest.raises(EnvironmentFailed, match="none could be started"):
                await play(host, "well")
        host._config = able
        assert await play(host, "well") == 1.0

    hosted(body)


def test_an_environment_that_never_began_can_only_be_closed() -> None:
    async def body(host: EnvironmentHost) -> None:
        environment = host.environment(task("well"))
        with pytest.raises(EnvironmentFailed, match="never started"):
            await environment.score(Ending.TIMEOUT)
        await environment.close()

    hosted(body)


def test_an_environment_that_was_abandoned_answers_nothing_more() -> None:
    async def body(host: EnvironmentHost) -> None:
        environment = host.environment(task("hangs"))
        await environment.reset()
        for _ in range(2):
            with pytest.raises(EnvironmentFailed):
                await environment.step(Action(text="hello"))
        await environment.close()
        await environment.close()

    hosted(body)


def test_closing_leaves_no_process_behind_even_one_that_hangs() -> None:
    pids = []

    async def body(host: EnvironmentHost) -> None:
        pids.extend(host.process_ids())
        environment = host.environment(task("hangs"))
        await environment.reset()
        step = asyncio.create_task(environment.step(Action(text="hello")))
        await asyncio.sleep(0.1)
        step.cancel()

    hosted(body, processes=2, step_timeout_s=30.0)
    assert len(pids) == 2 and not any(map(alive, pids))


def test_closing_leaves_no_process_behind_that_hangs_outside_of_python_and_was_given_up_just_before() -> None:
    pids = []

    async def run() -> None:
        values = EnvironmentConfig(name=breaking.__name__, processes=1, step_timeout_s=0.5)
        async with EnvironmentHost(values) as host:
            pids.extend(host.process_ids())
            environment = host.environment(Task(breaking.__name__, "none", "step hangs in C", "train"))
            await environment.reset()
            with pytest.raises(EnvironmentFailed, match="longer than"):
                await environment.step(Action(text="hello"))

    asyncio.run(asyncio.wait_for(run(), 60))
    assert len(pids) == 1 and not any(map(alive, pids))


def test_a_worker_process_that_cannot_start_is_reported() -> None:
    async def start() -> None:
        async with EnvironmentHost(config(start_timeout_s=0.01)):
            pass

    with pytest.raises(EnvironmentFailed, match="not ready after 0.01 s"):
        asyncio.run(start())


def test_the_real_environment_runs_in_a_worker_process() -> None:
    async def run() -> None:
        configuration = EnvironmentConfig(processes=1)
        async with EnvironmentHost(configuration) as host:
            environment = host.environment(list_tasks(configuration, "train")[0])
            opening, tools = await environment.reset()
            assert opening.messages[0]["role"] == "system" and len(tools) == 5
            for action in await environment.demonstration():
                observation = await environment.step(action)
            assert observation.ended is Ending.AGENT_STOP
            assert (await environment.score(observation.ended)).reward == 1.0
            await environment.close()

    asyncio.run(asyncio.wait_for(run(), 240))


@pytest.mark.parametrize("processes", [0, 1])
def test_no_environment_waits_for_the_thread_of_another(processes: int) -> None:
    """All are busy at once, more than a small pool of threads has room for, and each is within its time."""

    async def body(host: EnvironmentHost) -> None:
        async def step() -> None:
            environment = host.environment(task("very_slow"))
            await environment.reset()
            await environment.step(Action(text="hello"))
            await environment.close()

        await asyncio.gather(*(step() for _ in range(600)))
        assert host.statistics()["environments_abandoned"] == 0

    hosted(body, processes=processes, step_timeout_s=5.0)
