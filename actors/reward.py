"""The reward actor: turns the episodes of a group into scored training sequences, or drops the group.

Wiring only: shaping, advantages and the cutting into sequences are `rl_system.algorithms`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import ray
from ray.actor import ActorHandle

from rl_system.algorithms import score_group
from rl_system.config.run import RunConfig
from rl_system.tracking.rollout_statistics import RolloutStatistics
from rl_system.tracking.episodes import write_group


@ray.remote(num_cpus=0)
class Reward:
    def __init__(self, config: RunConfig, controller: ActorHandle, dispatcher: ActorHandle, directory: Path) -> None:
        self.config = config
        self.controller, self.dispatcher = controller, dispatcher
        self.directory = directory
        self.statistics = RolloutStatistics()

    async def score(self, group_id: int, episodes: list[ray.ObjectRef]) -> None:
        """Score a complete group and pass it on. The dispatcher has it before the controller counts it as finished."""
        members = list(await asyncio.gather(*episodes))
        group = score_group(members, self.config.algorithm)
        self.statistics.add_group(members, group)
        if self.config.tracking.save_episodes:
            await asyncio.to_thread(write_group, self.directory, members, group.advantages)
        if not group.sequences:
            await self.controller.drop_group.remote(group_id, "zero_signal")
            return
        await self.dispatcher.add_group.remote(group_id, group.sequences)
        await self.controller.finish_group.remote(group_id)

    def take_statistics(self) -> RolloutStatistics:
        """What was scored since the last call."""
        taken, self.statistics = self.statistics, RolloutStatistics()
        return taken
