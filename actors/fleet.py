"""The rollout workers of a run: given new weights together, replaced one by one when they break, and ended when their
accelerator is wanted elsewhere.

Invariant: a worker that turns are sent to serves the newest weights that `push` was given; one that is started while
weights travel is not shown to the environment pool before it has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from actors.cluster import Accelerators
from actors.engine.errors import EngineBroken
from actors.rollout_worker import RolloutWorker
from actors.side import SideFailed, last_line
from rl_system.allocation.switch import Side
from rl_system.config.run import RunConfig
from rl_system.records import Weights

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
HEARTBEAT_TIMEOUT_S = 120.0
"""A worker whose event loop does not answer for this long counts as broken. Longer than any pause of a weight update."""
CLOSE_TIMEOUT_S = 30.0
NODE_DEATH_LOOKS, NODE_DEATH_INTERVAL_S = 10, 1.0
"""How often to look whether a worker that broke did so with its node, with `allocation.elastic`."""
NO_UPDATE = {"seconds": 0.0, "paused_s": 0.0, "bytes": 0.0}
"""Report of an update that did not take place."""

BROKEN = (RayActorError, EngineBroken, TimeoutError, GetTimeoutError)
"""What a worker that was healthy raises when it no longer is."""
FAILED = (RayError, TimeoutError)
"""What a new one raises that does not come up, for whatever reason."""


class RolloutFleet:
    """Workers are known by the device that they occupy.

    pool: the environment pool, told about every change. on_replaced: called when a broken worker was replaced.
    """

    def __init__(
        self,
        config: RunConfig,
        model_directory: Path,
        accelerators: Accelerators,
        pool: ActorHandle,
        on_replaced: Callable[[], Awaitable[None]],
    ) -> None:
        self.config, self.accelerators, self.pool, self.on_replaced = config, accelerators, pool, on_replaced
        self.model_directory = model_directory
        """Where a new worker finds a model. Its parameters count only as long as nothing was pushed yet."""
        self.workers: dict[int, ActorHandle] = {}
        self.replaced = 0
        """Workers that broke and were replaced."""
        self._first_version = 0
        self._created = 0
        self._weights: Weights | None = None
        self._reports: dict[ActorHandle, dict[str, float]] = {}
        """The last statistics of every worker there ever was: what one that is gone had done still counts."""
        self._starting: dict[int, ActorHandle] = {}
        self._leaving: set[ActorHandle] = set()
        self._pushing = asyncio.Lock()
        self._replacing = asyncio.Lock()
        self._closing = False

    async def start(self, devices: list[int], version: int) -> None:
        """Start a worker on each device, on the parameters in the model directory, which are those of `version`."""
        self._first_version = version
        self.workers = {device: self._create(device) for device in devices}
        await asyncio.gather(*(self._ready(worker) for worker in self.workers.values()))
        await self._announce()

    # -- members -----------------------------------------------------------------------------------------------------

    async def start_member(self, device: int) -> None:
        """Start a worker on a free device, beside the others. Raises SideFailed; the device is free again then."""
        worker = self._starting[device] = self._create(device)
        try:
            await self._ready(worker)
        except FAILED as error:
            ray.kill(self._starting.pop(device))
            raise SideFailed(f"no rollout worker came up on device {device}: {last_line(error)}") from error

    async def join(self, device: int) -> None:
        """Let the worker that `start_member` brought up have its part of the turns. Raises SideFailed as that does."""
        try:
            await self._bring_up_to_date(device, self._starting[device])
        except FAILED as error:
            ray.kill(self._starting.pop(device))
            raise SideFailed(f"the new rollout worker took no weights: {last_line(error)}") from error
        del self._starting[device]
        await self._announce()

    async def release(self, device: int) -> None:
        """End the worker on `device`; its turns go on elsewhere, from their tokens where it still hands them over.

        When this returns the device is free. A worker that breaks on the way out is ended all the same: its turns
        then begin again elsewhere.
        """
        limit = self.config.allocation.handover_timeout_s
        # No weights travel before it is empty: a version counts as served once every worker that samples has it.
        async with self._pushing, self._replacing:
            worker = self.workers.pop(device, None)
            if worker is None:
                return  # it was given up with its node
            self._leaving.add(worker)
            try:
                await asyncio.wait_for(self.pool.vacate.remote(device), limit)
                self._reports[worker] = await asyncio.wait_for(worker.statistics.remote(), limit)
            except BROKEN as error:
                logger.warning("rollout worker %d did not hand over its turns: %s", device, last_line(error))
            await self._announce()
        await self._end(worker)
        self._leaving.remove(worker)

    # -- what they do ------------------------------------------------------------------------------------------------

    async def push(self, weights: Weights) -> dict[str, float]:
        """Give every worker `weights`. Returns the largest of the workers' `seconds`, `paused_s` and `bytes`.

        Raises WeightsRejected where a healthy worker refuses what it was sent.
        """
        async with self._pushing:
            self._weights = weights
            if weights.sender is None:
                reports = await asyncio.gather(*(self._push(device, weights) for device in list(self.workers)))
            else:
                reports = await self._push_together(weights)
        return {name: max(report[name] for report in reports) for name in NO_UPDATE}

    async def renew(self, weights: Weights) -> None:
        """Keep `weights` for workers that come later. They are those that were pushed last, from another trainer."""
        async with self._pushing, self._replacing:
            if self._weights is not None:
                self._weights = weights

    async def prompt_logprobs(self, token_ids: np.ndarray) -> np.ndarray:
        """Of the worker that was there first and leaves last; see `RolloutWorker.prompt_logprobs`."""
        return await next(iter(self.workers.values())).prompt_logprobs.remote(token_ids)

    async def totals(self) -> dict[str, float]:
        """Sums over all workers there were of `RolloutWorker.statistics`, since the start of the run."""
        workers = list(self.workers.values())
        reports = await asyncio.gather(*(worker.statistics.remote() for worker in workers), return_exceptions=True)
        for worker, report in zip(workers, reports, strict=True):
            if isinstance(report, BROKEN):
                continue  # it is replaced by whoever looks after that; its last report stays
            if isinstance(report, BaseException):
                raise report
            self._reports[worker] = report
        sums: dict[str, float] = {}
        for report in self._reports.values():
            for name, value in report.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    async def watch(self) -> None:
        """Replace workers that die between updates. Runs until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for device, worker in list(self.workers.items()):
                try:
                    await asyncio.wait_for(worker.ready.remote(), HEARTBEAT_TIMEOUT_S)
                except BROKEN as error:
                    await self._replace(device, worker, error)

    async def close(self) -> None:
        self._closing = True  # a worker that breaks because it is closed is not replaced
        for worker in self._starting.values():
            ray.kill(worker)
        await asyncio.gather(*(self._end(worker) for worker in [*self.workers.values(), *self._leaving]))
        self.workers, self._starting = {}, {}

    # -- pieces ------------------------------------------------------------------------------------------------------

    def _create(self, device: int) -> ActorHandle:
        options = self.accelerators.options(device, Side.ROLLOUT)
        index, self._created = self._created, self._created + 1
        return RolloutWorker.options(**options).remote(
            str(self.model_directory), self.config, self._first_version, index
        )

    async def _ready(self, worker: ActorHandle) -> None:
        await asyncio.wait_for(worker.ready.remote(), self.config.allocation.start_timeout_s)

    async def _announce(self) -> None:
        await self.pool.set_workers.remote(self.workers)

    async def _end(self, worker: ActorHandle) -> None:
        try:
            await asyncio.wait_for(worker.close.remote(), CLOSE_TIMEOUT_S)
        except FAILED as error:
            logger.warning("a rollout worker did not close: %s", last_line(error))
        ray.kill(worker)

    async def _push(self, device: int, weights: Weights) -> dict[str, float]:
        worker = self.workers[device]
        try:
            return (await self._give(weights, [worker]))[0]
        except BROKEN as error:
            return await self._replace(device, worker, error)

    async def _push_together(self, weights: Weights) -> list[dict[str, float]]:
        """As `_push` to all workers, of weights that are broadcast. One broadcast may fail, if only because of workers."""
        try:
            return await self._give(weights, list(self.workers.values()))
        except FAILED as error:
            broken = [(device, worker) for device, worker in self.workers.items() if not await self._is_whole(worker)]
            if not broken:
                raise
            for device, worker in broken:
                await self._replace(device, worker, error)
        return await self._give(weights, list(self.workers.values()))

    async def _is_whole(self, worker: ActorHandle) -> bool:
        try:
            await asyncio.wait_for(worker.ready.remote(), HEARTBEAT_TIMEOUT_S)
        except BROKEN:
            return False
        return True

    async def _give(self, weights: Weights, workers: list[ActorHandle]) -> list[dict[str, float]]:
        """Have `workers` serve `weights`, or newer ones where they are broadcast. Their reports."""
        if weights.sender is None:
            calls = asyncio.gather(*(worker.update_weights.remote(weights) for worker in workers))
        else:
            calls = weights.sender.broadcast.remote(workers)
        return await asyncio.wait_for(calls, self.config.weights.timeout_s)

    async def _replace(self, device: int, worker: ActorHandle, error: BaseException) -> dict[str, float]:
        """Put a new worker with the newest weights in the place of a broken one; a second break in a row is an error."""
        async with self._replacing:
            if self.workers.get(device) is not worker:
                return NO_UPDATE  # replaced by somebody else, with the newest weights, or gone for good
            if self._closing:
                raise error
            if self.config.allocation.elastic and await self._is_gone(device):
                logger.warning("rollout worker %d is given up, its node is gone: %s", device, last_line(error))
                del self.workers[device]
                await self._announce()
                return NO_UPDATE
            logger.warning("rollout worker %d is replaced: %s", device, last_line(error))
            ray.kill(worker)
            fresh = self._create(device)
            await self._ready(fresh)
            report = await self._bring_up_to_date(device, fresh)
            self.replaced += 1
            await self._announce()
            await self.on_replaced()
            return report

    async def _is_gone(self, device: int) -> bool:
        """Whether the device went with its node. Ray hears of a node's death after it has lost the worker."""
        for _ in range(NODE_DEATH_LOOKS):
            await self.accelerators.look()
            if self.accelerators.is_leaving(device):
                return True
            await asyncio.sleep(NODE_DEATH_INTERVAL_S)
        return False

    async def _bring_up_to_date(self, device: int, worker: ActorHandle) -> dict[str, float]:
        """Give a new worker the newest weights, also those that are published meanwhile, and a place in the fleet."""
        report, served = NO_UPDATE, None
        while served is not self._weights:
            served = self._weights
            report = (await self._give(served, [worker]))[0]
        self.workers[device] = worker
        return report
