"""The rollout workers of a run: given new weights together, replaced one by one when they break, and ended when their
accelerator is wanted elsewhere.

Invariants: a worker that turns are sent to serves the newest weights that `push` was given; one that is started while
weights travel is not shown to the environment pool before it has them. A worker is replaced because it is gone, says itself
that its engine is, or gives no sign of life for too long; never because an answer is slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import ray
from ray.actor import ActorHandle

from actors.answers import FAILED, Gone, NoAnswer, answer_to
from actors.cluster import Accelerators
from actors.engine.errors import RequestFailed
from actors.rollout_worker import RolloutWorker
from actors.side import SideFailed, last_line
from rl_system.allocation.heartbeat import Heartbeat
from rl_system.allocation.switch import Side
from rl_system.config.run import RunConfig
from rl_system.records import Weights

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
HEARTBEAT_TIMEOUT_S = 120.0
"""A worker that gives no sign of life for this long counts as broken. Its event loop waits for nothing: neither for steps of
the engine, nor for requests, nor for a weight update."""
CLOSE_TIMEOUT_S = 30.0
LOOK_INTERVAL_S = 1.0
"""Before a worker is asked again for a sign of life that it did not give at once."""
NODE_DEATH_LOOKS, NODE_DEATH_INTERVAL_S = 10, 1.0
"""How often to look whether a worker that broke did so with its node, with `allocation.elastic`."""
SCORE_LIMIT_S = 60.0
"""Longest to wait for a score; a measurement is not worth holding up the run."""
PUSH_ATTEMPTS = 3
"""Times that weights are given to a worker that lives and whose answer was lost."""
NO_UPDATE = {"seconds": 0.0, "paused_s": 0.0, "bytes": 0.0}
"""Report of an update that did not take place."""

BROKEN = (Gone, NoAnswer)


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
        self._came_up: set[ActorHandle] = set()
        """Those that were ready once. One that was not has nothing to close, and hears nothing before it is."""
        self._looked_at: set[ActorHandle] = set()
        """Workers that owe a sign of life."""
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
                await answer_to(self.pool.vacate.remote(device), limit)
                self._reports[worker] = await answer_to(worker.statistics.remote(), limit)
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

    async def prompt_logprobs(self, token_ids: np.ndarray) -> list[np.ndarray]:
        """What each worker that answers in time says of `token_ids`; see `RolloutWorker.prompt_logprobs`."""
        asked = {device: worker.prompt_logprobs.remote(token_ids) for device, worker in self.workers.items()}
        answers = await asyncio.gather(
            *(answer_to(call, SCORE_LIMIT_S) for call in asked.values()), return_exceptions=True
        )
        scores = []
        for (device, call), answer in zip(asked.items(), answers, strict=True):
            if isinstance(answer, NoAnswer):
                ray.cancel(call)  # takes it out of the engine
            if isinstance(answer, (*BROKEN, RequestFailed)):
                logger.warning("rollout worker %d was not compared with the trainer: %s", device, last_line(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                scores.append(answer)
        return scores

    async def totals(self) -> dict[str, float]:
        """Sums over all workers there were of `RolloutWorker.statistics`, since the start of the run."""
        workers = list(self.workers.values())
        calls = [answer_to(worker.statistics.remote(), HEARTBEAT_TIMEOUT_S) for worker in workers]
        reports = await asyncio.gather(*calls, return_exceptions=True)
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
        """Replace workers that die between updates, and have those in use again that live after all. Runs until cancelled."""
        try:
            async with asyncio.TaskGroup() as looks:
                while True:
                    await asyncio.sleep(HEARTBEAT_S)
                    if not self._looked_at:  # all answered
                        await self._announce()
                    for device, worker in self.workers.items():
                        if worker not in self._looked_at:
                            looks.create_task(self._look_after(device, worker))
        except* Exception as errors:
            raise errors.exceptions[0] from errors

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
        self._came_up.add(worker)

    async def _look_after(self, device: int, worker: ActorHandle) -> None:
        self._looked_at.add(worker)
        if (fault := await self._fault_of(worker)) is not None:
            await self._replace(device, worker, fault)
        self._looked_at.discard(worker)

    async def _announce(self) -> None:
        await self.pool.set_workers.remote(self.workers)

    async def _end(self, worker: ActorHandle) -> None:
        if worker in self._came_up:
            try:
                await answer_to(worker.close.remote(), CLOSE_TIMEOUT_S)
            except FAILED as error:
                logger.warning("a rollout worker did not close: %s", last_line(error))
        ray.kill(worker)

    async def _push(self, device: int, weights: Weights) -> dict[str, float]:
        worker = self.workers[device]
        fault: BaseException | None = None
        for _ in range(PUSH_ATTEMPTS):
            try:
                return (await self._give(weights, [worker]))[0]
            except BROKEN as error:
                fault = error if isinstance(error, Gone) else await self._fault_of(worker)
                if fault is not None:
                    break
                fault = error  # it lives, and may serve the weights or not: it is given them again
        return await self._replace(device, worker, fault)

    async def _push_together(self, weights: Weights) -> list[dict[str, float]]:
        """As `_push` to all workers, of weights that are broadcast. One broadcast may fail, if only because of workers."""
        try:
            return await self._give(weights, list(self.workers.values()))
        except FAILED as error:
            broken = [
                (device, worker) for device, worker in self.workers.items() if await self._fault_of(worker) is not None
            ]
            if not broken:
                raise
            for device, worker in broken:
                await self._replace(device, worker, error)
        return await self._give(weights, list(self.workers.values()))

    async def _fault_of(self, worker: ActorHandle) -> BaseException | None:
        """Why `worker` is of no further use; None where it gives a sign of life within `HEARTBEAT_TIMEOUT_S`."""
        heartbeat = Heartbeat(HEARTBEAT_TIMEOUT_S)
        while True:
            try:
                await answer_to(worker.ready.remote(), HEARTBEAT_TIMEOUT_S)
            except Gone as error:
                return error
            except NoAnswer as error:
                if heartbeat.stopped:
                    return error
                await asyncio.sleep(LOOK_INTERVAL_S)
            else:
                return None

    async def _give(self, weights: Weights, workers: list[ActorHandle]) -> list[dict[str, float]]:
        """Have `workers` serve `weights`, or newer ones where they are broadcast. Their reports."""
        if weights.sender is not None:
            return await asyncio.wait_for(weights.sender.broadcast.remote(workers), self.config.weights.timeout_s)
        return await asyncio.gather(*(self._update(worker, weights) for worker in workers))

    async def _update(self, worker: ActorHandle, weights: Weights) -> dict[str, float]:
        """However long it takes, as long as `worker` lives: what has a limit is its engine's part."""
        update = asyncio.ensure_future(answer_to(worker.update_weights.remote(weights)))
        try:
            while not (await asyncio.wait({update}, timeout=HEARTBEAT_S))[0]:
                if (fault := await self._fault_of(worker)) is not None:
                    raise fault
            return update.result()
        finally:
            update.cancel()  # nobody asks for what it comes to any more

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
