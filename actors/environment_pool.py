"""The environment pool: runs many episodes at once, as many groups as the controller permits.

Owns the episodes under way and which worker each one samples from. What an episode does is the agent loop's business, where
environments live the host's. Invariant: every group that was started ends with the reward actor or is reported as dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from actors.engine.errors import EngineBroken
from envs.host import EnvironmentHost
from envs.registry import list_tasks
from rl_system.algorithms.task_sampler import TaskSampler
from rl_system.allocation.ledger import StartedGroup
from rl_system.allocation.router import Router
from rl_system.chat.agent import GenerationFailed, Limits, run_episode
from rl_system.chat.renderer import Renderer
from rl_system.config.run import RunConfig
from rl_system.records import Ending, Episode, Task, Turn
from rl_system.training.loading import load_tokenizer

logger = logging.getLogger(__name__)

EPISODE_ATTEMPTS = 3
"""Times that a member of a group is played when its environment or worker breaks, before the group is dropped."""
LEVEL_INTERVAL_S = 0.1
"""Shortest time between two reports of levels to the controller; what lies between is reported once."""
EVALUATION_GROUP = -1

Key = tuple[int, int]
"""An episode under way: group and index, which is what the router knows it by."""


@ray.remote(num_cpus=0)
class EnvironmentPool:
    def __init__(
        self,
        config: RunConfig,
        model_directory: Path,
        controller: ActorHandle,
        reward: ActorHandle,
        sampler_state: dict[str, Any] | None,
    ) -> None:
        self.config, self.controller, self.reward = config, controller, reward
        model = config.model.model_copy(update={"path": str(model_directory)})
        self.renderer = Renderer(load_tokenizer(model), tool_format=model.tool_format)
        self.limits = Limits.of(config.environment, config.rollout, config.model.max_model_len)
        self.host = EnvironmentHost(config.environment)
        tasks = list_tasks(config.environment, config.environment.split)
        self.sampler = TaskSampler(tasks, config.seed, config.environment.shuffle_window)
        if sampler_state is not None:
            self.sampler.restore(sampler_state)
        self.workers: list[ActorHandle] = []
        self.router = Router()
        self.under_way: dict[int, Task] = {}
        """Tasks of the groups that are running, by group."""
        self._slots = asyncio.Semaphore(config.environment.concurrency)
        self._worker_arrived = asyncio.Condition()
        self._levels_changed = asyncio.Event()
        self._episodes = 0
        self._in_engine: Counter[int] = Counter()
        self._closing = False

    async def start(self) -> None:
        """Start the processes that environments live in."""
        await self.host.start()

    async def set_workers(self, workers: list[ActorHandle]) -> None:
        """The healthy rollout workers from now on; episodes of one that is gone go on elsewhere."""
        async with self._worker_arrived:
            for index, worker in enumerate(workers):
                if index >= len(self.workers) or self.workers[index] != worker:
                    self.router.remove(index)
                    self.router.add(index)
            for index in range(len(workers), len(self.workers)):
                self.router.remove(index)
            self.workers = list(workers)
            self._worker_arrived.notify_all()

    async def run(self) -> None:
        """Play groups as permits allow, until `stop`. An error in any of them ends the run with that error."""
        try:
            async with asyncio.TaskGroup() as tasks:
                reports = tasks.create_task(self._report_levels())
                await self._start_groups(tasks)
                reports.cancel()
        except* Exception as errors:
            raise errors.exceptions[0] from errors

    async def _start_groups(self, tasks: asyncio.TaskGroup) -> None:
        while not self._closing:
            # A permit is asked for only when the group can begin at once, so that it does not age in a queue.
            async with self._slots:
                group = None if self._closing else await self.controller.start_group.remote()
            if group is not None:
                task = self.sampler.next()
                self.under_way[group.group_id] = task
                tasks.create_task(self._play_group(group, task))
                await asyncio.sleep(0)  # let its episodes take their slots before the next permit is asked for

    async def stop(self) -> None:
        """Start no more groups; `run` returns when those under way are done."""
        self._closing = True

    async def evaluate(self, split: str, episodes_per_task: int, max_tasks: int | None, temperature: float) -> list:
        """Play every task of `split` beside the training groups and return the episodes, task by task.

        A failed episode is in the list as such.
        """
        chosen = list_tasks(self.config.environment, split)[:max_tasks]
        plays = [
            self._play(task, EVALUATION_GROUP, number * episodes_per_task + repeat, temperature)
            for number, task in enumerate(chosen)
            for repeat in range(episodes_per_task)
        ]
        return list(await asyncio.gather(*plays))

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the data cursor, and the tasks of the groups that are running."""
        under_way = {str(group_id): task.task_id for group_id, task in self.under_way.items()}
        return {"sampler": self.sampler.state(), "under_way": under_way}

    async def close(self) -> None:
        await self.host.close()

    async def _play_group(self, group: StartedGroup, task: Task) -> None:
        members = range(self.config.rollout.group_size)
        episodes = await asyncio.gather(*(self._play(task, group.group_id, index) for index in members))
        if any(episode.ended is Ending.FAILED for episode in episodes):
            await self.controller.drop_group.remote(group.group_id, "failed")
        else:
            await self.reward.score.remote(group.group_id, [ray.put(episode) for episode in episodes])
        del self.under_way[group.group_id]

    async def _play(self, task: Task, group_id: int, index: int, temperature: float | None = None) -> Episode:
        key = (group_id, index)
        async with self._slots:
            self._episodes += 1
            self._levels_changed.set()
            try:
                for _ in range(EPISODE_ATTEMPTS):
                    episode = await run_episode(
                        task,
                        group_id,
                        index,
                        self.host.environment(task),
                        lambda ids, most: self._generate(key, ids, most, temperature),
                        self.renderer,
                        self.limits,
                    )
                    if episode.ended is not Ending.FAILED:
                        break
                    await self.controller.episode_failed.remote()
            finally:
                self.router.release(key)
                self._episodes -= 1
                self._levels_changed.set()
        return episode

    async def _generate(
        self, key: Key, prompt_ids: np.ndarray, max_new_tokens: int, temperature: float | None
    ) -> Turn:
        """One turn, from another worker when the first one breaks; the turn then starts again from its prompt."""
        timeout_s = self.config.rollout.request_timeout_s
        for _ in range(EPISODE_ATTEMPTS):
            index = await self._worker_of(key, timeout_s)
            self._in_engine[index] += 1
            self._levels_changed.set()
            request = self.workers[index].generate.remote(prompt_ids, max_new_tokens, temperature)
            try:
                return await asyncio.wait_for(request, timeout_s)
            except (RayActorError, EngineBroken, TimeoutError) as error:
                logger.warning("rollout worker %d did not answer (%s); its turns move elsewhere", index, error)
                self.router.remove(index)
            finally:
                self._in_engine[index] -= 1
                self._levels_changed.set()
        raise GenerationFailed(f"{EPISODE_ATTEMPTS} rollout workers in a row broke on the same turn")

    async def _worker_of(self, key: Key, timeout_s: float) -> int:
        async with self._worker_arrived:
            try:
                await asyncio.wait_for(self._worker_arrived.wait_for(lambda: self.router.workers), timeout_s)
            except TimeoutError:
                raise GenerationFailed(f"no rollout worker was healthy for {timeout_s:g} s") from None
            return self.router.assign(key)

    async def _report_levels(self) -> None:
        while True:
            await self._levels_changed.wait()
            self._levels_changed.clear()
            in_engines = sum(self._in_engine.values())
            await self.controller.levels.remote(
                self.config.environment.concurrency - self._episodes,
                self._episodes - in_engines,
                len(self.router.workers),
                sum(count > 0 for count in self._in_engine.values()),
            )
            await asyncio.sleep(LEVEL_INTERVAL_S)
