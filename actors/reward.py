"""The reward actor: turns the episodes of a group into scored training sequences, or drops the group.

Wiring only: shaping, advantages and the cutting into sequences are `rl_system.algorithms`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import ray
from ray.actor import ActorHandle

from rl_system.algorithms import score_group
from rl_system.algorithms.groups import ScoredGroup
from rl_system.config.run import RunConfig
from rl_system.records import Episode
from rl_system.tracking.episodes import write_episodes
from rl_system.tracking.measures import episode_metrics, group_metrics


@ray.remote(num_cpus=0)
class Reward:
    def __init__(self, config: RunConfig, controller: ActorHandle, dispatcher: ActorHandle, directory: Path) -> None:
        self.config = config
        self.controller, self.dispatcher = controller, dispatcher
        self.directory = directory
        self.episodes: list[Episode] = []
        self.groups: list[ScoredGroup] = []

    async def score(self, group_id: int, episodes: list[ray.ObjectRef]) -> None:
        """Score a complete group and pass it on. The dispatcher has it before the controller counts it as finished."""
        members = list(await asyncio.gather(*episodes))
        group = score_group(members, self.config.algorithm)
        self.episodes += members
        self.groups.append(group)
        if self.config.tracking.save_episodes:
            file = self.directory / f"group_{group_id:06}.jsonl"
            await asyncio.to_thread(write_episodes, file, members, group.advantages)
        if not group.sequences:
            await self.controller.drop_group.remote(group_id, "zero_signal")
            return
        await self.dispatcher.add_group.remote(group_id, group.sequences)
        await self.controller.finish_group.remote(group_id)

    def take_metrics(self) -> dict[str, float]:
        """Metrics of everything scored since the last call, dropped groups included."""
        metrics = episode_metrics(self.episodes) | group_metrics(self.groups)
        self.episodes, self.groups = [], []
        return metrics
