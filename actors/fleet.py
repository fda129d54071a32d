"""The rollout workers of a run: started together, given new weights together, replaced one by one when they break.

Invariant: after `push(weights)` every worker serves `weights.version`, whatever happened to it on the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError

from actors.cluster import Accelerators
from actors.engine.errors import EngineBroken
from actors.rollout_worker import RolloutWorker
from rl_system.config.run import RunConfig
from rl_system.records import Weights

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 900.0
"""Loading a large model takes minutes."""
HEARTBEAT_S = 10.0
HEARTBEAT_TIMEOUT_S = 120.0
"""A worker whose event loop does not answer for this long counts as broken. Longer than any pause of a weight update."""
CLOSE_TIMEOUT_S = 30.0

BROKEN = (RayActorError, EngineBroken, TimeoutError, GetTimeoutError)


class RolloutFleet:
    """`announce(workers)` is called with the list of handles whenever it changes."""

    def __init__(
        self,
        config: RunConfig,
        model_directory: Path,
        accelerators: Accelerators,
        announce: Callable[[list[ActorHandle]], Awaitable[None]],
    ) -> None:
        self.config, self.model_directory, self.accelerators = config, model_directory, accelerators
        self.announce = announce
        self.workers: list[ActorHandle] = []
        self.replaced = 0
        """Workers that broke and were replaced."""
        self._first_version = 0
        self._weights: Weights | None = None
        self._reports: dict[ActorHandle, dict[str, float]] = {}
        """The last statistics of every worker there ever was: what a broken one had done still counts."""
        self._replacing = asyncio.Lock()
        self._closing = False

    async def start(self, version: int) -> None:
        """Start all workers on the parameters in the model directory, which are those of `version`."""
        self._first_version = version
        self.workers = [self._create(index) for index in range(self.config.allocation.rollout)]
        await asyncio.gather(*(self._ready(worker) for worker in self.workers))
        await self.announce(self.workers)

    async def push(self, weights: Weights) -> dict[str, float]:
        """Give every worker `weights`. Returns the slowest worker's `seconds` and `paused_s`.

        Raises WeightsRejected where a healthy worker refuses what it was sent.
        """
        self._weights = weights
        reports = await asyncio.gather(*(self._push(index, weights) for index in range(len(self.workers))))
        return {name: max(report[name] for report in reports) for name in ("seconds", "paused_s")}

    async def prompt_logprobs(self, token_ids: np.ndarray) -> np.ndarray:
        """Of the first worker; see `RolloutWorker.prompt_logprobs`."""
        return await self.workers[0].prompt_logprobs.remote(token_ids)

    async def totals(self) -> dict[str, float]:
        """Sums over all workers of `RolloutWorker.statistics`, since the start of the run."""
        workers = list(self.workers)
        reports = await asyncio.gather(*(worker.statistics.remote() for worker in workers))
        self._reports |= dict(zip(workers, reports, strict=True))
        sums: dict[str, float] = {}
        for report in self._reports.values():
            for name, value in report.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    async def watch(self) -> None:
        """Replace workers that die between updates. Runs until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for index, worker in enumerate(list(self.workers)):
                try:
                    await asyncio.wait_for(worker.ready.remote(), HEARTBEAT_TIMEOUT_S)
                except BROKEN as error:
                    await self._replace(index, worker, error)

    async def close(self) -> None:
        self._closing = True  # a worker that breaks because it is closed is not replaced
        closing = [asyncio.wait_for(worker.close.remote(), CLOSE_TIMEOUT_S) for worker in self.workers]
        for worker, result in zip(self.workers, await asyncio.gather(*closing, return_exceptions=True), strict=True):
            if isinstance(result, BaseException):
                logger.warning("a rollout worker did not close: %s", type(result).__name__)
            ray.kill(worker)
        self.workers = []

    def _create(self, index: int) -> ActorHandle:
        options = self.accelerators.options(bundle=index)
        return RolloutWorker.options(**options).remote(
            str(self.model_directory), self.config, self._first_version, index
        )

    async def _ready(self, worker: ActorHandle) -> None:
        await asyncio.wait_for(worker.ready.remote(), START_TIMEOUT_S)

    async def _push(self, index: int, weights: Weights) -> dict[str, float]:
        worker = self.workers[index]
        try:
            return await asyncio.wait_for(worker.update_weights.remote(weights), self.config.weights.timeout_s)
        except BROKEN as error:
            return await self._replace(index, worker, error)

    async def _replace(self, index: int, worker: ActorHandle, error: BaseException) -> dict[str, float]:
        """Put a new worker with the newest weights in the place of a broken one; a second break in a row is an error."""
        async with self._replacing:
            if self.workers[index] is not worker:
                return {"seconds": 0.0, "paused_s": 0.0}  # replaced by somebody else, with the newest weights
            if self._closing:
                raise error
            logger.warning("rollout worker %d is replaced: %s", index, last_line(error))
            ray.kill(worker)
            fresh = self._create(index)
            await self._ready(fresh)
            report = {"seconds": 0.0, "paused_s": 0.0}
            if self._weights is not None:
                report = await asyncio.wait_for(
                    fresh.update_weights.remote(self._weights), self.config.weights.timeout_s
                )
            self.workers[index] = fresh
            self.replaced += 1
            await self.announce(self.workers)
            return report


def last_line(error: BaseException) -> str:
    """What went wrong, without the actor's traceback that Ray puts before it."""
    return (str(error).splitlines() or [type(error).__name__])[-1]
