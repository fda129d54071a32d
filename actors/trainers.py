"""The trainers of a run as one: every call goes to all ranks alike, every answer is the group's.

No rank waits in a collective that another has not been asked to enter, since all are called before any is awaited.

The group can be formed anew with one rank more or less. Invariant: when `join` or `release` returns or raises SideFailed,
`ranks` are a whole group with the parameters and optimizer states of before; anything else that they raise ends the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle

from actors.answers import FAILED, NoAnswer, answer_to
from actors.cluster import Accelerators
from actors.side import SideFailed, last_line
from actors.trainer import Trainer
from rl_system.allocation.switch import Side
from rl_system.config.run import RunConfig
from rl_system.executor import CostModel
from rl_system.records import TrainBatch, Weights
from rl_system.training.resharding import Handover

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""A trainer in the middle of an update does not answer; what it would still do is of no use to anybody."""


class TrainerGroup:
    """`devices[rank]` is the accelerator of that rank.

    on_first_left: awaited when the rank that published has left the group and before it is gone, with all it published.
    """

    def __init__(
        self,
        config: RunConfig,
        model_directory: Path,
        accelerators: Accelerators,
        on_first_left: Callable[[], Awaitable[None]],
    ) -> None:
        self.config, self.accelerators, self.on_first_left = config, accelerators, on_first_left
        self.model_directory = model_directory
        """Where a new trainer finds a model. Its parameters count only for the first ones."""
        self.ranks: list[ActorHandle] = []
        self.devices: list[int] = []
        self._starting: dict[int, ActorHandle] = {}

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def copies(self) -> int:
        """Copies of the model, each trained on another part of a batch by `allocation.tensor_parallel` neighbours."""
        return self.size // self._sharing

    @property
    def _sharing(self) -> int:
        return self.config.allocation.tensor_parallel

    async def start(self, devices: list[int]) -> None:
        """Start a rank on each device and form their group."""
        self.devices, size = list(devices), len(devices)
        self.ranks = [self._create(rank, size, device) for rank, device in enumerate(devices)]
        meeting = await self.ranks[0].host.remote() if size > 1 else None
        await self._all("setup", meeting)

    # -- members -----------------------------------------------------------------------------------------------------

    async def start_member(self, device: int) -> None:
        """Start a trainer on a free device and load its model, beside the group at work.

        Raises SideFailed; the device is free again then.
        """
        trainer = self._starting[device] = self._create(self.size, self.size + 1, device)
        try:
            await asyncio.wait_for(trainer.load.remote(), self.config.allocation.start_timeout_s)
        except FAILED as error:
            ray.kill(self._starting.pop(device))
            raise SideFailed(f"no trainer came up on device {device}: {last_line(error)}") from error

    async def join(self, device: int) -> None:
        """Form the group anew with the trainer that `start_member` brought up as its last rank. Raises SideFailed as
        that does. The group must be at rest.
        """
        newcomer = self._starting[device]
        try:
            await self._regroup([*self.ranks, newcomer])
        except SideFailed:
            ray.kill(self._starting.pop(device))
            raise
        del self._starting[device]
        self.devices.append(device)

    async def release(self, device: int) -> None:
        """Form the group anew without the rank on `device`, and end that. The group must be at rest. Raises SideFailed
        where the others could not form one: the group is as before then.
        """
        rank = self.devices.index(device)
        leaver = self.ranks[rank]
        await self._regroup(self.ranks[:rank] + self.ranks[rank + 1 :])
        self.devices.pop(rank)
        if rank == 0:
            await self.on_first_left()
        await self._end(leaver)

    async def _regroup(self, ranks: list[ActorHandle]) -> None:
        """Deal the states of the group out among `ranks`; where that fails, among the old ones again."""
        try:
            async with asyncio.timeout(self.config.allocation.start_timeout_s):
                left = await asyncio.gather(*(rank.hand_over.remote(len(ranks)) for rank in self.ranks))
        except FAILED as error:
            raise SideFailed(f"the trainers could not hand over their states: {last_line(error)}") from error
        try:
            await self._form(ranks, left[0], lambda rank: [each.shards[rank] for each in left])
        except FAILED as error:
            logger.warning("the trainers form their old group again: %s", last_line(error))
            every = [shard for each in left for shard in each.shards]
            await self._form(self.ranks, left[0], lambda rank: every)
            raise SideFailed(f"a group of {len(ranks)} trainers did not form: {last_line(error)}") from error
        self.ranks = ranks

    async def _form(
        self, ranks: list[ActorHandle], first: Handover, shards: Callable[[int], list[ray.ObjectRef]]
    ) -> None:
        """Raises what the first of the ranks raised, once none of them waits for another any more."""
        size = len(ranks)
        async with asyncio.timeout(self.config.allocation.start_timeout_s):
            meeting = await ranks[0].host.remote(size=size) if size > 1 else None
            answers = await asyncio.gather(
                *(rank.regroup.remote(index, size, meeting, first, shards(index)) for index, rank in enumerate(ranks)),
                return_exceptions=True,
            )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    # -- what they do ------------------------------------------------------------------------------------------------

    async def update(self, parts: list[list[ray.ObjectRef]]) -> dict[str, float]:
        """One policy update; parts[copy] holds the minibatches of that copy of the model. Metrics of the whole batch."""
        each = [part for part in parts for _ in range(self._sharing)]
        answers = await asyncio.gather(
            *(rank.update.remote(part) for rank, part in zip(self.ranks, each, strict=True))
        )
        return answers[0]

    async def publish(self) -> Weights:
        return await self._first_copy("publish")

    async def logprobs(self, batch: TrainBatch, temperature: float | None = None) -> np.ndarray:
        """See `Learner.logprobs`."""
        return await self._first_copy("logprobs", batch, temperature)

    async def cost_model(self) -> CostModel:
        return await self.ranks[0].cost_model.remote()

    async def started_from(self) -> Path:
        """The model that the run began with, also after a resume."""
        return Path(await self.ranks[0].where_it_started.remote())

    async def save_checkpoint(self, directory: Path, step: int, state: dict[str, Any], blobs: dict[str, bytes]) -> Path:
        return (await self._all("save_checkpoint", directory, step, state, blobs))[0]

    async def load_checkpoint(self, path: Path, started_from: Path | None = None) -> None:
        """started_from: where the model that the run began with lies now; None: where it did then."""
        await self._all("load_checkpoint", path, started_from)

    async def close(self) -> None:
        await asyncio.gather(*(self._end(rank) for rank in self.ranks))
        for trainer in self._starting.values():
            ray.kill(trainer)
        self.ranks, self.devices, self._starting = [], [], {}

    # -- pieces ------------------------------------------------------------------------------------------------------

    def _create(self, rank: int, size: int, device: int) -> ActorHandle:
        options = self.accelerators.options(device, Side.TRAINER)
        return Trainer.options(**options).remote(rank, size, self.config, str(self.model_directory))

    async def _end(self, rank: ActorHandle) -> None:
        try:
            await answer_to(rank.close.remote(), CLOSE_TIMEOUT_S)
        except NoAnswer:
            logger.info("a trainer was busy when it was closed")
        except FAILED as error:
            logger.warning("a trainer did not close: %s", last_line(error))
        ray.kill(rank)

    async def _first_copy(self, method: str, *arguments: Any) -> Any:
        """What the first of the ranks that share the first copy of the model answers."""
        sharing = self.ranks[: self._sharing]
        return (await asyncio.gather(*(getattr(rank, method).remote(*arguments) for rank in sharing)))[0]

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        return list(await asyncio.gather(*(getattr(rank, method).remote(*arguments) for rank in self.ranks)))
