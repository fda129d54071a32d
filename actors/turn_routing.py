"""Sending turns to rollout workers, and on to others when a worker breaks or has to go.

Owns the workers as the environment pool sees them, and which one each episode samples from. A worker is known by the
device that it occupies. Invariants: a turn that was begun ends as one turn, or raises; no turn goes to a worker that was
taken out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from actors.engine.errors import EngineBroken
from rl_system.allocation.handover import ABORTED
from rl_system.allocation.pacing import PacedDevices
from rl_system.allocation.router import Router
from rl_system.chat.agent import GenerationFailed
from rl_system.records import Turn

logger = logging.getLogger(__name__)

TURN_ATTEMPTS = 3
"""Workers that may break on a turn before its episode fails. Handing a turn over counts as none."""
HAND_OVER_INTERVAL_S = 0.1
"""Between two times that a worker is asked for its turns: a turn on its way into the engine is not seen at first."""


class TurnRouting:
    """timeout_s: longest that one worker may take for a turn. on_change: called when the numbers of busy workers or of
    requests in engines changed."""

    def __init__(self, timeout_s: float, on_change: Callable[[], None]) -> None:
        self.timeout_s, self._on_change = timeout_s, on_change
        self._workers: dict[int, ActorHandle] = {}
        self._router = Router()
        self._arrived = asyncio.Condition()
        self._in_engine: Counter[int] = Counter()
        self.paced = PacedDevices()
        """How fast workers may be, see `allocation.pace`."""

    @property
    def engines(self) -> int:
        """Workers that turns are sent to."""
        return len(self._router.workers)

    @property
    def busy_engines(self) -> int:
        return sum(count > 0 for count in self._in_engine.values())

    @property
    def requests(self) -> int:
        return sum(self._in_engine.values())

    async def set_workers(self, workers: Mapping[int, ActorHandle]) -> None:
        """The healthy workers from now on; episodes of one that is gone go on elsewhere."""
        async with self._arrived:
            for device, worker in workers.items():
                if self._workers.get(device) != worker:
                    self._router.remove(device)
                    self._router.add(device)
            for device in self._workers.keys() - workers.keys():
                self._router.remove(device)
            self._workers = dict(workers)
            self._arrived.notify_all()
        self._on_change()

    async def vacate(self, device: int) -> None:
        """Send no turn to the worker on `device` any more, and have those that are in it ended by others.

        Returns when none is left in it. Raises what the worker raises when it breaks meanwhile.
        """
        worker = self._workers.pop(device)
        self._router.remove(device)
        while self._in_engine[device]:
            await worker.hand_over.remote()
            await asyncio.sleep(HAND_OVER_INTERVAL_S)

    async def generate(
        self,
        episode: Hashable,
        prompt_ids: np.ndarray,
        max_new_tokens: int,
        temperature: float | None,
        seed: int | None = None,
    ) -> Turn:
        """One turn of `episode`; seed: of its random numbers. What a worker handed over is ended by the next; what a broken
        one had begun starts again from there. Raises GenerationFailed.
        """
        prefix: Turn | None = None
        broken = 0
        while broken < TURN_ATTEMPTS:
            device = await self._worker_of(episode)
            self._in_engine[device] += 1
            self._on_change()
            began, before = time.monotonic(), len(prefix.response_ids) if prefix else 0
            request = self._workers[device].generate.remote(prompt_ids, max_new_tokens, temperature, prefix, seed)
            try:
                turn = await asyncio.wait_for(request, self.timeout_s)
            except asyncio.CancelledError:
                ray.cancel(request)  # or the engine would go on with it
                raise
            except (RayActorError, EngineBroken, TimeoutError) as error:
                logger.warning("rollout worker %d did not answer (%s); its turns move elsewhere", device, error)
                self._router.remove(device)
                broken += 1
            else:
                if turn.finish_reason != ABORTED:
                    await self._hold_back(device, len(turn.response_ids) - before, began)
                    return turn
                prefix = turn
            finally:
                self._in_engine[device] -= 1
                self._on_change()
        raise GenerationFailed(f"{TURN_ATTEMPTS} rollout workers in a row broke on the same turn")

    async def _hold_back(self, device: int, tokens: int, began: float) -> None:
        await asyncio.sleep(self.paced.wait_s(device, tokens, began, time.monotonic()))

    def release(self, episode: Hashable) -> None:
        """`episode` is over."""
        self._router.release(episode)

    async def _worker_of(self, episode: Hashable) -> int:
        async with self._arrived:
            try:
                await asyncio.wait_for(self._arrived.wait_for(lambda: self._router.workers), self.timeout_s)
            except TimeoutError:
                raise GenerationFailed(f"no rollout worker was healthy for {self.timeout_s:g} s") from None
            return self._router.assign(episode)
