"""Moving accelerators between generation and training while the run goes on.

Wiring only: whether to move is the policy's decision (behind the controller) or a person's request; in which order things
happen and what becomes of a failure is the `Switch`'s. It is carried out here, one switch at a time.

The trainers' group changes between two steps and nowhere else: `at_boundary` is called there by the main loop. What a
switch does to one member alone, which takes the longest (emptying and stopping an engine, loading a model), goes on
beside the steps.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ray.actor import ActorHandle

from actors.cluster import Accelerators
from actors.side import Members, SideFailed
from rl_system.allocation.decision import Decision
from rl_system.allocation.requests import take_requests
from rl_system.allocation.switch import Outcome, Phase, Side, Switch
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.tracking.tracker import Tracker


class Rebalancer:
    def __init__(
        self,
        config: RunConfig,
        controller: ActorHandle,
        accelerators: Accelerators,
        sides: dict[Side, Members],
        tracker: Tracker,
    ) -> None:
        self.config, self.controller, self.sides, self.tracker = config, controller, sides, tracker
        self.devices = accelerators.devices
        self.switch: Switch | None = None
        self._beside: asyncio.Task[None] | None = None
        self._decision: Decision | None = None
        self._sampled_tokens = 0.0
        self._began = self._standstill_s = 0.0
        self._requested = 0
        self._totals = dict.fromkeys(
            ("controller/switches", "controller/failed_switches", "controller/refused_requests"), 0.0
        )
        self._last_cost: dict[str, float] = {}

    # -- deciding --------------------------------------------------------------------------------------------------

    async def consult(self, step: int, sampled_tokens: float, method: str) -> dict[str, float]:
        """Hear requests and, at the end of a window or where somebody asked for a move, the policy.

        sampled_tokens: since the last call. method: `tree` or `dense`, what trained. Returns metrics of the step.
        """
        self._sampled_tokens += sampled_tokens
        await self._hear_requests()
        metrics = self._last_cost
        self._last_cost = {}
        if self.switch is None and (self._requested or step % self.config.allocation.window_steps == 0):
            metrics = metrics | await self._close_window(method)
        split = self.devices.split if self.switch is None else self.switch.split
        return metrics | self._totals | {
            "controller/rollout": float(split.rollout),
            "controller/trainer": float(split.trainer),
            "controller/switching": float(self.switch is not None),
        }

    async def discard_requests(self) -> None:
        """Refuse what was asked before the run was there to hear it."""
        for request in take_requests(self.config.directory):
            self._refuse(request.name, "it was made before the run started")

    async def _hear_requests(self) -> None:
        try:
            requests = take_requests(self.config.directory)
        except UserError as error:
            self._refuse("unknown", str(error))
            return
        for request in requests:
            try:
                self._requested = await self.controller.request.remote(request.move, request.count)
            except UserError as error:
                self._refuse(request.name, str(getattr(error, "cause", error)))
                continue
            self.tracker.event(
                "rebalance_request", request=request.name, accepted=True, move=request.move, count=request.count
            )

    def _refuse(self, name: str, reason: str) -> None:
        self._totals["controller/refused_requests"] += 1
        self.tracker.event("rebalance_request", request=name, accepted=False, reason=reason)
        self.tracker.progress.note(f"a request to move accelerators was refused: {reason}")

    async def _close_window(self, method: str) -> dict[str, float]:
        observation, decision, self._requested = await self.controller.close_window.remote(self._sampled_tokens, method)
        self._sampled_tokens, self._decision = 0.0, decision
        self.tracker.event(
            "allocation",
            move=decision.move,
            advice=decision.advice,
            split=list(decision.current),
            best=list(decision.best),
            limit=decision.limit,
            reason=decision.reason,
            gain=decision.gain,
        )
        self.tracker.progress.status(controller=decision.reason)
        return {
            "perf/rollout_idle_share": observation.rollout.idle,
            "perf/permit_wait_share": observation.rollout.waiting,
            "perf/train_wait_share": observation.trainer.waiting,
            "perf/groups_per_s": observation.trainer.groups_per_s,
            "rollout/tool_share": observation.rollout.tool_share,
            "controller/advised_rollout": float(decision.best.rollout),
            "controller/advised_trainer": float(decision.best.trainer),
            "controller/predicted_gain": decision.gain,
        }

    # -- carrying out ----------------------------------------------------------------------------------------------

    async def at_boundary(self) -> asyncio.Task[None] | None:
        """Between two steps: begin what was decided last, or go on with a switch that waits for the trainers to rest.

        Returns the part of it that goes on beside the next step, once.
        """
        if self._beside is not None:
            if not self._beside.done():
                return None
            await self._beside
            self._beside = None
        decision, self._decision = self._decision, None
        if self.switch is None:
            if decision is None or decision.move is None:
                return None
            await self._begin(decision)
        if self.switch.needs_standstill:
            await self._stand_still()
        if self.switch.over:
            await self._finish()
            return None
        self._beside = asyncio.create_task(self._go_on_beside())
        return self._beside

    async def settle(self) -> None:
        """Carry a switch that is under way to its end, without steps in between."""
        self._decision = None
        while self.switch is not None:
            if self._beside is not None:
                await self._beside
            await self.at_boundary()

    async def _stand_still(self) -> None:
        began = time.monotonic()
        await self.controller.trainer_state.remote("rebuilding")
        while self.switch.needs_standstill:
            await self._carry_out_phase()
        self._standstill_s += time.monotonic() - began

    async def _go_on_beside(self) -> None:
        while not (self.switch.needs_standstill or self.switch.over):
            await self._carry_out_phase()
        if self.switch.over:
            await self._finish()

    async def _begin(self, decision: Decision) -> None:
        device = self.devices.candidate(decision.move)
        self.switch = Switch(decision.move, device, self.devices.split)
        self._began, self._standstill_s = time.monotonic(), 0.0
        await self.controller.switch_began.remote()
        self.tracker.event(
            "switch_began", move=decision.move, device=device, split=list(self.switch.before), reason=decision.reason
        )

    async def _carry_out_phase(self) -> None:
        switch, owner = self.switch, self.switch.owner
        side = self.sides[switch.side]
        self.tracker.progress.status(controller=f"accelerator {switch.device}: {switch.side} {switch.phase}")
        try:
            match switch.phase:
                case Phase.LEAVING:
                    await side.release(switch.device)
                case Phase.STARTING:
                    await side.start_member(switch.device)
                case Phase.JOINING:
                    await side.join(switch.device)
        except SideFailed as error:
            switch.failed(str(error))
        else:
            switch.succeeded()
        if switch.owner is not owner:
            self.devices.free(switch.device)
            if switch.owner is not None:
                self.devices.claim(switch.device, switch.owner)

    async def _finish(self) -> None:
        """A move costs the trainers' standstill, and one accelerator's share of the cluster for as long as it took."""
        switch, self.switch = self.switch, None
        seconds = time.monotonic() - self._began
        cost_s = self._standstill_s + seconds / self.config.allocation.accelerators
        moved = switch.outcome is Outcome.MOVED
        self._totals["controller/switches" if moved else "controller/failed_switches"] += 1
        self._last_cost = {"controller/switch_cost_s": cost_s, "controller/standstill_s": self._standstill_s}
        await self.controller.switch_finished.remote(switch.move, self.devices.split, cost_s)
        costs: dict[str, Any] = {"seconds": seconds, "standstill_s": self._standstill_s, "cost_s": cost_s}
        self.tracker.event(
            "switch_finished",
            move=switch.move,
            device=switch.device,
            outcome=switch.outcome,
            split=list(self.devices.split),
            failures=switch.failures,
            **costs,
        )
        what = f"accelerator {switch.device} {'went' if moved else 'did not go'} {switch.move.value.replace('_', ' ')}"
        why = f" ({'; '.join(switch.failures)})" if switch.failures else ""
        self.tracker.progress.note(f"{what}: {self.devices.split} now, {seconds:.0f} s, cost {cost_s:.1f} s{why}")
