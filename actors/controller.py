"""The controller: owns the policy version, the staleness permits and the split of accelerators.

Wiring only: what may be started and trained is the ledger's decision, what the split should be the policy's.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray

from rl_system.allocation.decision import Decision, Move
from rl_system.allocation.drops import DropStreak
from rl_system.allocation.ledger import StalenessLedger, StartedGroup
from rl_system.allocation.observation import Observation, Split, SwitchCost
from rl_system.allocation.policy import SplitPolicy
from rl_system.allocation.resumed import split_state, start_split
from rl_system.allocation.switch import Side
from rl_system.allocation.window import ObservationWindow
from rl_system.config.run import RunConfig
from rl_system.errors import UserError

PERMIT_WAIT_S = 5.0
"""Longest that one call waits for a permit; the pool asks again, so that a run that ends keeps nobody waiting."""


@ray.remote(num_cpus=0)
class Controller:
    def __init__(self, config: RunConfig, state: dict[str, Any] | None) -> None:
        rollout = config.rollout
        self.config = config
        self.ledger = StalenessLedger(
            rollout.groups_per_batch, rollout.max_staleness, total_groups=config.steps * rollout.groups_per_batch
        )
        self.split, _ = start_split(config.allocation, state)
        self.policy = SplitPolicy(config.allocation)
        if state is not None:
            self.ledger.restore(state["ledger"])
            self.policy.restore(state["policy"])
        self.open_window()
        self._started_at: dict[int, float] = {}
        self._drops = DropStreak()
        self._changed = asyncio.Condition()

    # -- groups ----------------------------------------------------------------------------------------------------

    async def start_group(self) -> StartedGroup | None:
        """A permit for one group; None where there was none for a while."""
        async with self._changed:
            if not await self._wait_for(self.ledger.permits, PERMIT_WAIT_S):
                return None
            group = self.ledger.start()
        self._started_at[group.group_id] = time.monotonic()
        return group

    async def finish_group(self, group_id: int) -> None:
        """The group's sequences are with the dispatcher."""
        async with self._changed:
            self.ledger.finish(group_id)
            self._drops.finished()
            self._changed.notify_all()
        self.window.group_finished(time.monotonic() - self._started_at.pop(group_id))

    async def drop_group(self, group_id: int, reason: str) -> None:
        async with self._changed:
            self.ledger.drop(group_id, reason)
            self._drops.dropped(reason)
            self._changed.notify_all()
        self._started_at.pop(group_id)

    async def next_batch(self) -> list[int]:
        """The groups of the next batch, once there is one. From now on they count as trained on.

        Raises UserError where the run cannot get there: too many groups dropped in a row, or none finished for
        `rollout.stall_timeout_s`.
        """
        limit, patience = self.config.rollout.max_drops_in_a_row, self.config.rollout.stall_timeout_s
        async with self._changed:
            while (batch := self.ledger.take_batch()) is None:
                if len(self._drops) >= limit:
                    raise UserError(self._drops.explain())
                if not await self._wait_for_event(patience):
                    raise UserError(
                        f"no group was started, finished or dropped for rollout.stall_timeout_s ({patience:g} s) while "
                        f"the next batch waits for {self.ledger.waits_for()}; the rollout workers or environments hang"
                    )
            self._changed.notify_all()
        return batch

    async def serve(self, version: int) -> None:
        """Every rollout worker has `version` now."""
        async with self._changed:
            self.ledger.serve(version)
            self._changed.notify_all()

    # -- measuring -------------------------------------------------------------------------------------------------

    def open_window(self) -> None:
        """Begin to measure: what came before (starting, evaluating) says nothing about the split."""
        self.window = ObservationWindow(
            time.monotonic(),
            slots=self.config.environment.concurrency,
            groups_per_batch=self.ledger.groups_per_batch,
            max_staleness=self.ledger.max_staleness,
        )
        self.window.engines.set(self.split.rollout, time.monotonic())

    def levels(self, empty_slots: int, in_tools: int, engines: int, busy_engines: int) -> None:
        """The pool's present levels, see `ObservationWindow`."""
        now = time.monotonic()
        self.window.engines.set(engines, now)
        self.window.empty_slots.set(empty_slots, now)
        self.window.in_tools.set(in_tools, now)
        self.window.busy_engines.set(busy_engines, now)

    def episode_failed(self) -> None:
        self.window.episode_failed()

    def disturb(self) -> None:
        """A worker is being replaced: this window's rates say nothing about the split."""
        self.window.disturb()

    def trainer_state(self, state: str) -> None:
        """`waiting`, `updating` or `rebuilding`."""
        self.window.trainer_is(state, time.monotonic())

    def update_finished(self, *measured: float) -> None:
        """See `ObservationWindow.update_finished`."""
        self.window.update_finished(*measured)

    def request(self, move: Move, count: int) -> int:
        """A person's wish to move accelerators. How many are to be moved now, together; UserError where it cannot be."""
        self.policy.request(move, count, self.split)
        return self.policy.pending

    def switch_began(self) -> None:
        """From now on until `switch_finished`, rates say nothing about a split."""
        self.window.disturb()

    def place(self) -> Side:
        """The side that a new accelerator serves best."""
        return self.policy.place(self.split)

    def switch_finished(self, move: Move | None, split: Split, cost_s: float) -> None:
        """A switch is over, whatever became of it: `split` works from now on, and it cost so much production time.

        move: None where a device came from outside or left for good, which teaches nothing about moves.
        """
        self.split = split
        self.window.disturb()
        if move is not None:
            self.window.switch_finished(SwitchCost(move is Move.TO_ROLLOUT, cost_s))

    def close_window(self, sampled_tokens: float, method: str) -> tuple[Observation, Decision, int]:
        """End the window at a step boundary: what was measured, what the policy makes of it, and how many accelerators
        are to be moved after that, as soon as can be.
        """
        observation = self.window.close(
            time.monotonic(),
            step=self.ledger.trained,
            split=self.split,
            sampled_tokens=sampled_tokens,
            queue=self.ledger.finished,
            method=method,
            steps_left=self.config.steps - self.ledger.trained,
        )
        return observation, self.policy.observe(observation), self.policy.pending

    def status(self) -> dict[str, Any]:
        """Counts for the metrics: groups running and finished, permits, drops by reason."""
        return {
            "running": self.ledger.running,
            "finished": self.ledger.finished,
            "permits": self.ledger.permits(),
            "dropped": dict(self.ledger.dropped),
            "waits_for": self.ledger.waits_for() or "nothing",
        }

    def state(self) -> dict[str, Any]:
        split = split_state(self.split, self.config.allocation)
        return {"ledger": self.ledger.state(), "policy": self.policy.state(), "split": split}

    async def _wait_for_event(self, timeout_s: float) -> bool:
        """Whether any group was started, finished or dropped in time."""
        before = self.ledger.events
        return await self._wait_for(lambda: self.ledger.events != before, timeout_s)

    async def _wait_for(self, predicate, timeout_s: float) -> bool:
        """Whether `predicate` came true in time. Holds the condition on entry and on return."""
        try:
            await asyncio.wait_for(self._changed.wait_for(predicate), timeout_s)
        except TimeoutError:
            return False
        return True
