"""The environment pool: runs many episodes at once, as many groups as the controller permits.

Owns the episodes under way. Which worker samples their turns is `TurnRouting`'s business, what an episode does the agent
loop's, where environments live the host's. Invariant: every group that was started ends with the reward actor or is
reported as dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle

from actors.endpoint import EndpointServers
from actors.turn_routing import TurnRouting
from envs.host import EnvironmentHost
from envs.registry import is_agent, list_tasks
from rl_system.algorithms.group_race import GroupRace
from rl_system.algorithms.task_sampler import TaskSampler
from rl_system.allocation.ledger import StartedGroup
from rl_system.chat.agent import Limits, run_episode
from rl_system.chat.clock import EpisodeClock
from rl_system.config.budgets import EPISODE_ATTEMPTS
from rl_system.config.run import RunConfig
from rl_system.endpoint.agent_episode import play_agent
from rl_system.records import Ending, Episode, Task, Turn
from rl_system.seeds import EVALUATION_GROUP, turn_seed
from rl_system.tracking.failure_book import FailureBook
from rl_system.tracking.failures import Sighting
from rl_system.training.loading import load_renderer

LEVEL_INTERVAL_S = 0.1
"""Shortest time between two reports of levels to the controller; what lies between is reported once."""
CALLS_AT_ONCE = 100_000
"""Calls of the pool that may be under way: each turn of an agent is one."""

Key = tuple[int, int]
"""An episode under way: group and index, which is what the router knows it by."""


@ray.remote(num_cpus=0, max_concurrency=CALLS_AT_ONCE)
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
        self.renderer = load_renderer(model)
        self.limits = Limits.of(config.environment, config.rollout, config.model.max_model_len)
        self.host = EnvironmentHost(config.environment)
        tasks = list_tasks(config.environment, config.environment.split)
        self.sampler = TaskSampler.of(tasks, config.seed, config.environment)
        self.failures = FailureBook(config.directory, len(tasks))
        if sampler_state is not None:
            self.sampler.restore(sampler_state)
        self._levels_changed = asyncio.Event()
        # A worker that broke is replaced: as long as that may take, and the weights after it.
        patience_s = config.allocation.start_timeout_s + config.weights.timeout_s
        self.turns = TurnRouting(patience_s, self._levels_changed.set)
        self.endpoint: EndpointServers | None = None
        """Where agents call the model, if the episodes are theirs."""
        if is_agent(config.environment):
            me = ray.get_runtime_context().current_actor
            self.endpoint = EndpointServers(config, model_directory, me)
        self.under_way: dict[int, Task] = {}
        """Tasks of the groups that are running, by group."""
        self._slots = asyncio.Semaphore(config.environment.concurrency)
        self._episodes = 0
        self._cancelled = 0
        """Episodes that were started and cancelled since the metrics were last taken."""
        self._closing = False

    async def start(self) -> None:
        """Start the processes that environments live in."""
        await self.host.start()
        if self.endpoint is not None:
            await self.endpoint.start()

    async def set_workers(self, workers: dict[int, ActorHandle]) -> None:
        """The healthy rollout workers from now on, by device."""
        await self.turns.set_workers(workers)

    def set_pace(self, sampled_tokens_per_s: float) -> None:
        """How fast each rollout worker may be from now on, see `allocation.pace`."""
        self.turns.paced.tokens_per_s = sampled_tokens_per_s

    async def vacate(self, device: int) -> None:
        """See `TurnRouting.vacate`."""
        await self.turns.vacate(device)

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
                task = self.sampler.next(group.group_id)
                self.under_way[group.group_id] = task
                tasks.create_task(self._play_group(group, task))
                await asyncio.sleep(0)  # let its episodes take their slots before the next permit is asked for

    async def stop(self) -> None:
        """Start no more groups; `run` returns when those under way are done."""
        self._closing = True

    async def generate_turn(
        self,
        key: Key,
        prompt_ids: np.ndarray,
        max_new_tokens: int,
        temperature: float | None,
        repeat: int = 0,
        seed: int | None = None,
        without_worker: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> Turn:
        """A turn of the episode `key`. repeat, seed: see `turn_seed`; only a deterministic run, or an agent, chooses seeds.
        without_worker: see `TurnRouting.generate`. Raises GenerationFailed."""
        if self.config.deterministic or seed is not None:
            seed = turn_seed(self.config.seed, *key, prompt_ids, repeat, seed)
        return await self.turns.generate(key, prompt_ids, max_new_tokens, temperature, seed, without_worker)

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

    def take_failures(self) -> tuple[list[Sighting], str | None]:
        """Failures of new kinds since the last call, and why going on is of no use, once it is."""
        return self.failures.take_news(), self.failures.verdict()

    def take_metrics(self) -> dict[str, float]:
        """`rollout/` metrics of the task order and the environments as they stand, and of what was cancelled since the
        last call."""
        cancelled, self._cancelled = self._cancelled, 0
        hosted = self.host.statistics()
        return {
            "rollout/cancelled_episodes": float(cancelled),
            "rollout/environment_failures": float(self.failures.watch.failures),
            "rollout/slow_turns": float(self.turns.slow_turns),
            "rollout/environments_abandoned": float(hosted["environments_abandoned"]),
            "rollout/environment_processes_replaced": float(hosted["processes_replaced"]),
        } | self.sampler.metrics()

    def state(self) -> dict[str, Any]:
        """For a checkpoint: the data cursor, and the tasks of the groups that are running."""
        under_way = {str(group_id): task.task_id for group_id, task in self.under_way.items()}
        return {"sampler": self.sampler.state(), "under_way": under_way}

    def endpoints(self) -> list[ActorHandle]:
        """The servers of the endpoint."""
        return [] if self.endpoint is None else self.endpoint.actors

    async def close(self) -> None:
        await self.host.close()
        if self.endpoint is not None:
            await self.endpoint.stop()

    async def _play_group(self, group: StartedGroup, task: Task) -> None:
        rollout = self.config.rollout
        race = GroupRace(rollout.group_size, rollout.episodes_per_group)
        plays = [asyncio.create_task(self._play(task, group.group_id, index)) for index in sorted(race.running)]
        try:
            while not race.over:
                await asyncio.wait([plays[index] for index in race.running], return_when=asyncio.FIRST_COMPLETED)
                for index in sorted(index for index in race.running if plays[index].done()):
                    race.end(index, plays[index].result().ended is Ending.FAILED)
        finally:
            await self._cancel([plays[index] for index in race.running])
        if race.lost:
            await self.controller.drop_group.remote(group.group_id, "failed")
        else:
            episodes = [plays[index].result() for index in race.members]
            self.sampler.observe(task, sum(episode.solved for episode in episodes), len(episodes))
            await self.reward.score.remote(group.group_id, [ray.put(episode) for episode in episodes])
        del self.under_way[group.group_id]

    async def _cancel(self, plays: list[asyncio.Task[Episode]]) -> None:
        """End episodes that nobody waits for any more, and whatever they have in an engine."""
        for play in plays:
            play.cancel()
        results = await asyncio.gather(*plays, return_exceptions=True)
        self._cancelled += sum(play.cancelled() for play in plays)
        for error in (result for result in results if isinstance(result, Exception)):
            raise error

    async def _play(self, task: Task, group_id: int, index: int, temperature: float | None = None) -> Episode:
        key = (group_id, index)
        async with self._slots:
            self._episodes += 1
            self._levels_changed.set()
            try:
                for _ in range(EPISODE_ATTEMPTS):
                    with self.failures.playing(task) as over:
                        episode = await self._attempt(task, key, temperature)
                        over(episode)
                    if episode.ended is not Ending.FAILED:
                        break
                    await self.controller.episode_failed.remote()
            finally:
                self.turns.release(key)
                self._episodes -= 1
                self._levels_changed.set()
        return episode

    async def _attempt(self, task: Task, key: Key, temperature: float | None) -> Episode:
        if self.endpoint is not None:
            door = self.endpoint.door(key, temperature)
            return await play_agent(task, *key, partial(self.host.run_agent, task), door, self.limits)
        clock = EpisodeClock()
        return await run_episode(
            task,
            *key,
            self.host.environment(task),
            lambda prompt_ids, most: self.generate_turn(key, prompt_ids, most, temperature, without_worker=clock.stopped),
            self.renderer,
            self.limits,
            clock,
        )

    async def _report_levels(self) -> None:
        while True:
            await self._levels_changed.wait()
            self._levels_changed.clear()
            await self.controller.levels.remote(
                self.config.environment.concurrency - self._episodes,
                self._episodes - self.turns.episodes,
                self.turns.engines,
                self.turns.busy_engines,
            )
            await asyncio.sleep(LEVEL_INTERVAL_S)
