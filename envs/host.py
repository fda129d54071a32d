"""Environments in worker processes, awaitable and time-limited.

    async with EnvironmentHost(config) as host:
        environment = host.environment(task)

Invariant: a slow, hung or crashed environment costs its own episode and nothing else, at worst those that shared a
process that died. An environment that exceeds its time limit is abandoned where it is: its process takes no new
environments, a fresh one takes its place at once, and the old one is killed as soon as the others on it are done.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from envs.agents import AgentResult, Endpoint
from envs.process import WorkerDied, WorkerProcess
from envs.protocol import Action, EnvironmentFailed, Observation, Score
from envs.stage import THREADS, Stage
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.records import Ending, Task

STOP_AGENT_TIMEOUT_S = 10.0
"""Longest that an agent which is told to stop may take before its process is given up."""
WHERE_TIMEOUT_S = 2.0
"""Longest that a worker is asked where an environment hangs. One that runs no Python does not answer."""

log = logging.getLogger(__name__)


class CannotStart(EnvironmentFailed, UserError):
    """The worker processes did not come up: nothing can be played, and a person has to do something about it."""


class Place(Protocol):
    """Somewhere environments live: a worker process, or threads of this one."""

    open: set[int]
    """Keys of environments that live here and may still be called."""

    async def call(self, key: int, verb: str, argument: Any) -> Any:
        """Raises EnvironmentFailed where the environment raised, WorkerDied where the place is gone."""

    async def where(self, key: int) -> tuple[str, str]:
        """What environment `key` is doing now: the place in its code, and the stack; empty where that is not known."""

    def forget(self, key: int) -> None:
        """Close an environment without waiting for it."""

    async def stop(self) -> None:
        """End the place, whatever its environments are doing."""


class EnvironmentHost:
    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self._keys = itertools.count()
        self._places: list[Place] = []
        self._retired: list[Place] = []
        """Take no new environments; stopped once those on them are done."""
        self._background: set[asyncio.Task[None]] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        """Starts of processes that take the place of others. A subset of `_background`."""
        self._stopping: set[asyncio.Task[None]] = set()
        """Ends of processes that are used no more. A subset of `_background`."""
        self._closed = False
        self._counts: Counter[str] = Counter()

    async def __aenter__(self) -> EnvironmentHost:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Raises CannotStart, and leaves no process behind, if one does not come up in time."""
        if self._config.processes == 0:
            self._places = [InlinePlace(self._config)]
            return
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._config.processes):
                    group.create_task(self._start_process())
        except* EnvironmentFailed as failures:
            await self.close()
            failure = failures.exceptions[0]
            raise CannotStart(f"environment.name {self._config.name!r}: {failure}", failure.details) from None

    async def close(self) -> None:
        """End all processes. Environments that are still in use fail."""
        self._closed = True
        for task in self._background - self._stopping:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        everywhere = [*self._places, *self._retired]
        self._places, self._retired = [], []
        await asyncio.gather(*self._stopping, *(place.stop() for place in everywhere))

    def environment(self, task: Task) -> HostedEnvironment:
        """An environment for one episode. It takes a place on `reset`."""
        return HostedEnvironment(self, task)

    async def run_agent(self, task: Task, endpoint: Endpoint, timeout_s: float) -> AgentResult:
        """Run the agent of `task` once, to its end.

        Raises TimeoutError where it takes longer than `timeout_s`, and EnvironmentFailed where its process died. When this
        is left before the agent has ended, the agent is stopped; one that does not give way is abandoned with its process.
        """
        place, key = await self.take_place()
        try:
            async with asyncio.timeout(timeout_s):
                return await place.call(key, "run", (task, endpoint))
        except WorkerDied as death:
            self._abandon(place, key)
            raise EnvironmentFailed(f"the worker process died during run ({death})", death.details) from None
        finally:
            self._run(self._dismiss(place, key))

    async def gold(self, task: Task) -> list[Action]:
        """What a perfect model would answer the agent of `task`, call by call. Raises EnvironmentFailed."""
        place, key = await self.take_place()
        try:
            return await self.call(place, key, "gold", task)
        finally:
            self.leave(place, key)

    async def _dismiss(self, place: Place, key: int) -> None:
        """Stop an agent, wherever it stands, and make its place free."""
        if key not in place.open:
            return
        try:
            async with asyncio.timeout(STOP_AGENT_TIMEOUT_S):
                await place.call(key, "stop", None)
        except (TimeoutError, WorkerDied):
            self._abandon(place, key)
            return
        place.open.discard(key)
        self._stop_if_unused(place)

    def statistics(self) -> dict[str, int]:
        """Since the start: `environments_abandoned`, `processes_replaced`. Now: `environments_open`, `processes`."""
        return {
            "environments_abandoned": self._counts["abandoned"],
            "processes_replaced": self._counts["replaced"],
            "environments_open": sum(len(place.open) for place in [*self._places, *self._retired]),
            "processes": len(self._places),
        }

    def process_ids(self) -> list[int]:
        """Of the worker processes that take environments now."""
        return [place.pid for place in self._places if isinstance(place, WorkerProcess)]

    async def take_place(self) -> tuple[Place, int]:
        """The place with the fewest environments, ties by its position, and a key there.

        Where no process is up, waits for one that is being started: an environment that hung or crashed costs the next
        ones a moment, and not their episodes. Raises EnvironmentFailed where none comes up.
        """
        if not self._places and not self._replacing and not self._closed:
            self._replace()  # the last replacement could not be started
        while not self._places and self._replacing:
            await asyncio.wait(self._replacing, return_when=asyncio.FIRST_COMPLETED)
        if not self._places:
            raise EnvironmentFailed("no worker process is up, and none could be started")
        place = min(self._places, key=lambda each: len(each.open))
        key = next(self._keys)
        place.open.add(key)
        return place, key

    def leave(self, place: Place, key: int) -> None:
        """The episode is over. Does nothing if the environment was abandoned before."""
        if key in place.open:
            place.open.discard(key)
            place.forget(key)
            self._stop_if_unused(place)

    async def call(self, place: Place, key: int, verb: str, argument: Any) -> Any:
        """Raises EnvironmentFailed; after a time-out or a death the environment is gone for good."""
        if key not in place.open:
            raise EnvironmentFailed(f"{verb} on an environment that is gone")
        limit = self._config.call_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await place.call(key, verb, argument)
        except TimeoutError:
            try:
                where, stack = await self._where(place, key)
            finally:
                self._abandon(place, key)
            raise EnvironmentFailed(f"{verb} took longer than {limit:g} s" + (where and f" ({where})"), stack) from None
        except WorkerDied as death:
            self._abandon(place, key)
            raise EnvironmentFailed(f"the worker process died during {verb} ({death})", death.details) from None

    async def _where(self, place: Place, key: int) -> tuple[str, str]:
        try:
            async with asyncio.timeout(WHERE_TIMEOUT_S):
                return await place.where(key)
        except (TimeoutError, WorkerDied):
            return "", ""

    def _abandon(self, place: Place, key: int) -> None:
        self._counts["abandoned"] += 1
        place.open.discard(key)
        if place in self._places and isinstance(place, WorkerProcess):
            self._counts["replaced"] += 1
            self._places.remove(place)
            self._retired.append(place)
            self._replace()
        self._stop_if_unused(place)

    def _stop_if_unused(self, place: Place) -> None:
        if place in self._retired and not place.open:
            self._retired.remove(place)
            stop = self._run(place.stop())
            self._stopping.add(stop)
            stop.add_done_callback(self._stopping.discard)

    def _replace(self) -> None:
        start = self._run(self._replace_process())
        self._replacing.add(start)
        start.add_done_callback(self._replacing.discard)

    async def _replace_process(self) -> None:
        try:
            await self._start_process()
        except EnvironmentFailed as failure:
            log.error("a worker process for environments could not be replaced: %s", failure)

    async def _start_process(self) -> None:
        process = WorkerProcess(self._config)
        try:
            await process.start()
        except BaseException:
            await process.stop()
            raise
        self._places.append(process)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


class HostedEnvironment:
    """An `AsyncEnvironment` whose work happens elsewhere."""

    def __init__(self, host: EnvironmentHost, task: Task) -> None:
        self._host = host
        self._task = task
        self._seat: tuple[Place, int] | None = None

    async def reset(self) -> tuple[Observation, list[dict[str, Any]]]:
        self._seat = await self._host.take_place()
        return await self._call("reset", self._task)

    async def step(self, action: Action) -> Observation:
        return await self._call("step", action)

    async def score(self, ended: Ending) -> Score:
        return await self._call("score", ended)

    async def demonstration(self) -> list[Action]:
        return await self._call("demonstration", None)

    async def close(self) -> None:
        if self._seat is not None:
            self._host.leave(*self._seat)

    async def _call(self, verb: str, argument: Any) -> Any:
        if self._seat is None:
            raise EnvironmentFailed(f"{verb} on an environment that was never started")
        return await self._host.call(*self._seat, verb, argument)


class InlinePlace:
    """Threads of this process. An environment that hangs keeps its thread: only for environments that cannot."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.open: set[int] = set()
        self._stage = Stage(config)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="environment")

    async def call(self, key: int, verb: str, argument: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._stage.perform, key, verb, argument)

    async def where(self, key: int) -> tuple[str, str]:
        return self._stage.where(key)

    def forget(self, key: int) -> None:
        self._pool.submit(self._stage.perform, key, "close")

    async def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
