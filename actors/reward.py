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
from rl_system.allocation.drops import ZERO_SIGNAL
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
        self.scored: dict[int, tuple[list[Episode], ScoredGroup]] = {}
        """Groups that no step's metrics cover yet."""

    async def score(self, group_id: int, episodes: list[ray.ObjectRef]) -> None:
        """Score a complete group and pass it on. The dispatcher has it before the controller counts it as finished."""
        members = list(await asyncio.gather(*episodes))
        group = score_group(members, self.config.algorithm)
        self.scored[group_id] = (members, group)
        if self.config.tracking.save_episodes:
            file = self.directory / f"group_{group_id:06}.jsonl"
            dropped = None if group.sequences else ZERO_SIGNAL
            await asyncio.to_thread(write_episodes, file, members, group.advantages, group.credits, dropped)
        if not group.sequences:
            await self.controller.drop_group.remote(group_id, ZERO_SIGNAL)
            return
        await self.dispatcher.add_group.remote(group_id, group.sequences)
        await self.controller.finish_group.remote(group_id)

    def take_metrics(self, group_ids: list[int]) -> dict[str, float]:
        """Metrics of the groups of a step: those it trained on, and those dropped that were started before the last of
        them. Every group is covered once, and the metrics of a step do not depend on when it is asked.
        """
        taken = [self.scored.pop(i) for i in sorted(self.scored) if i in group_ids or self._dropped_before(i, group_ids)]
        return episode_metrics([each for members, _ in taken for each in members]) | group_metrics(
            [group for _, group in taken]
        )

    def _dropped_before(self, group_id: int, group_ids: list[int]) -> bool:
        return group_id < max(group_ids) and not self.scored[group_id][1].sequences
