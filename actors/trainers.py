"""The trainers of a run as one: every call goes to all ranks alike, every answer is the group's.

No rank waits in a collective that another has not been asked to enter, since all are called before any is awaited.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle

from actors.cluster import Accelerators
from actors.trainer import Trainer
from rl_system.config.run import RunConfig
from rl_system.executor import CostModel
from rl_system.records import TrainBatch, Weights

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""A trainer in the middle of an update does not answer; what it would still do is of no use to anybody."""


class TrainerGroup:
    def __init__(self, config: RunConfig, model_directory: Path, accelerators: Accelerators) -> None:
        self.config, self.model_directory, self.accelerators = config, model_directory, accelerators
        self.ranks: list[ActorHandle] = []

    @property
    def size(self) -> int:
        return len(self.ranks)

    async def start(self) -> None:
        """Start all ranks and form their group."""
        first, size = self.config.allocation.rollout, self.config.allocation.trainer
        self.ranks = [
            Trainer.options(**self.accelerators.options(bundle=first + rank)).remote(
                rank, size, self.config, str(self.model_directory)
            )
            for rank in range(size)
        ]
        meeting = await self.ranks[0].host.remote() if size > 1 else None
        await self._all("setup", meeting)

    async def update(self, parts: list[list[ray.ObjectRef]]) -> dict[str, float]:
        """One policy update; parts[rank] holds that rank's minibatches. Metrics of the whole batch."""
        answers = await asyncio.gather(
            *(rank.update.remote(part) for rank, part in zip(self.ranks, parts, strict=True))
        )
        return answers[0]

    async def publish(self) -> Weights:
        return await self.ranks[0].publish.remote()

    async def logprobs(self, batch: TrainBatch) -> np.ndarray:
        return await self.ranks[0].logprobs.remote(batch)

    async def cost_model(self) -> CostModel:
        return await self.ranks[0].cost_model.remote()

    async def save_checkpoint(self, directory: Path, step: int, state: dict[str, Any], blobs: dict[str, bytes]) -> Path:
        return (await self._all("save_checkpoint", directory, step, state, blobs))[0]

    async def load_checkpoint(self, path: Path) -> None:
        await self._all("load_checkpoint", path)

    async def close(self) -> None:
        closing = [asyncio.wait_for(rank.close.remote(), CLOSE_TIMEOUT_S) for rank in self.ranks]
        for rank, result in zip(self.ranks, await asyncio.gather(*closing, return_exceptions=True), strict=True):
            if isinstance(result, BaseException) and not isinstance(result, TimeoutError):
                logger.warning("a trainer did not close: %s", result)
            ray.kill(rank)
        self.ranks = []

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        return list(await asyncio.gather(*(getattr(rank, method).remote(*arguments) for rank in self.ranks)))
