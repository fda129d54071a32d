"""Sending turns to rollout workers, and on to others when a worker breaks, has to go, or takes too long.

Owns the workers as the environment pool sees them, and which one each episode samples from. A worker is known by the
device that it occupies. Whether one lives is not judged here by how fast it answers: one whose turns are slow stays, and
one that seemed gone comes back with the next `set_workers` that names it. Invariants: a turn that was begun ends as one
turn, or raises; no turn goes to a worker that was taken out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager

import numpy as np
import ray
from ray.actor import ActorHandle

from actors.answers import Gone, NoAnswer, answer_to
from actors.engine.errors import RequestFailed
from actors.side import last_line
from rl_system.allocation.handover import ABORTED, OVERDUE
from rl_system.allocation.pacing import PacedDevices
from rl_system.allocation.router import Router
from rl_system.chat.agent import GenerationFailed
from rl_system.records import Turn

logger = logging.getLogger(__name__)

TURN_ATTEMPTS = 3
"""Times that a worker may break on a turn, or take too long for it, before its episode fails. Handing over counts as none."""
HAND_OVER_INTERVAL_S = 0.1
"""Between two times that a worker is asked for its turns: a turn on its way into the engine is not seen at first."""


class TurnRouting:
    """timeout_s: longest to wait for a healthy worker where there is none. on_change: called when the numbers of busy
    workers or of requests in engines changed."""

    def __init__(self, timeout_s: float, on_change: Callable[[], None]) -> None:
        self.timeout_s, self._on_change = timeout_s, on_change
        self._workers: dict[int, ActorHandle] = {}
        self._router = Router()
        self._arrived = asyncio.Condition()
        self._in_engine: Counter[int] = Counter()
        self.slow_turns = 0
        """Times that a worker took too long for a turn, since the start."""
        self._asking: Counter[Hashable] = Counter()
        """Requests in engines by episode: an agent may have several."""
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
    def episodes(self) -> int:
        """Episodes that have a request in an engine."""
        return len(self._asking)

    async def set_workers(self, workers: Mapping[int, ActorHandle]) -> None:
        """The healthy workers from now on; episodes of one that is gone go on elsewhere. One that was taken out because it
        did not answer is back in then."""
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

        Returns when none is left in it. The turns of a worker that breaks meanwhile begin again elsewhere.
        """
        worker = self._workers.pop(device)
        self._router.remove(device)
        while self._in_engine[device]:
            try:
                await answer_to(worker.hand_over.remote())
            except (Gone, NoAnswer) as error:
                logger.warning("rollout worker %d did not hand over its turns (%s)", device, error)
            await asyncio.sleep(HAND_OVER_INTERVAL_S)

    async def generate(
        self,
        episode: Hashable,
        prompt_ids: np.ndarray,
        max_new_tokens: int,
        temperature: float | None,
        seed: int | None = None,
        without_worker: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> Turn:
        """One turn of `episode`; seed: of its random numbers. without_worker: entered while there is no healthy worker.

        What a worker handed over, or took too long for, is ended by the next from the tokens that it has; what a broken
        one had begun starts again from there. With a seed, where a turn stood when it took too long is forgotten: that hangs
        on the clock, and its tokens may not. Raises GenerationFailed.
        """
        prefix: Turn | None = None
        failures: list[str] = []
        while len(failures) < TURN_ATTEMPTS:
            device = await self._worker_of(episode, without_worker)
            worker = self._workers[device]
            try:
                turn = await self._ask(device, episode, prompt_ids, max_new_tokens, temperature, prefix, seed)
            except Gone as error:
                failures.append(f"worker {device} broke: {error}")
                if self._workers.get(device) == worker:  # else another one has its place already
                    self._router.remove(device)
            except (NoAnswer, RequestFailed) as error:
                failures.append(f"worker {device} gave no answer: {last_line(error)}")
                self._router.move(episode)
            else:
                if turn.finish_reason not in (ABORTED, OVERDUE):
                    return turn
                if turn.finish_reason == OVERDUE:
                    failures.append(f"worker {device} took too long")
                    self.slow_turns += 1
                    self._router.move(episode)
                if turn.finish_reason == ABORTED or seed is None:
                    prefix = turn
        raise GenerationFailed(
            f"{TURN_ATTEMPTS} rollout workers in a row broke on the same turn or took too long for it: {'; '.join(failures)}"
        )

    async def _ask(
        self,
        device: int,
        episode: Hashable,
        prompt_ids: np.ndarray,
        max_new_tokens: int,
        temperature: float | None,
        prefix: Turn | None,
        seed: int | None,
    ) -> Turn:
        self._in_engine[device] += 1
        self._asking[episode] += 1
        self._on_change()
        began, before = time.monotonic(), len(prefix.response_ids) if prefix else 0
        request = self._workers[device].generate.remote(prompt_ids, max_new_tokens, temperature, prefix, seed)
        try:
            turn = await answer_to(request)
            if turn.finish_reason not in (ABORTED, OVERDUE):
                await self._hold_back(device, len(turn.response_ids) - before, began)
            return turn
        except asyncio.CancelledError:
            ray.cancel(request)  # or the engine would go on with it
            raise
        except (Gone, NoAnswer) as error:
            logger.warning("rollout worker %d did not answer (%s); its turns move elsewhere", device, error)
            raise
        finally:
            self._in_engine[device] -= 1
            self._asked(episode)
            self._on_change()

    def _asked(self, episode: Hashable) -> None:
        self._asking[episode] -= 1
        if not self._asking[episode]:
            del self._asking[episode]

    async def _hold_back(self, device: int, tokens: int, began: float) -> None:
        await asyncio.sleep(self.paced.wait_s(device, tokens, began, time.monotonic()))

    def release(self, episode: Hashable) -> None:
        """`episode` is over."""
        self._router.release(episode)

    async def _worker_of(
        self, episode: Hashable, without_worker: Callable[[], AbstractContextManager[None]]
    ) -> int:
        async with self._arrived:
            if not self._router.workers:
                with without_worker():
                    await self._wait_for_workers()
            return self._router.assign(episode)

    async def _wait_for_workers(self) -> None:
        try:
            await asyncio.wait_for(self._arrived.wait_for(lambda: self._router.workers), self.timeout_s)
        except TimeoutError:
            raise GenerationFailed(f"no rollout worker was healthy for {self.timeout_s:g} s") from None
