"""Moving accelerators between generation and training, into the run and out of it, while it goes on.

Wiring only: whether to move is the policy's decision (behind the controller) or a person's request; what to do about devices
that join or leave the cluster is `next_change`'s; in which order things
happen and what becomes of a failure is the `Switch`'s. It is carried out here, one switch at a time.

The trainers' group changes between two steps and nowhere else: `at_boundary` is called there by the main loop. What a
switch does to one member alone, which takes the longest (emptying and stopping an engine, loading a model), goes on
beside the steps.
"""

from __future__ import annotations

import asyncio
import time

from ray.actor import ActorHandle

from actors.cluster import Accelerators
from actors.side import Members, SideFailed
from rl_system.allocation.decision import Decision
from rl_system.allocation.elastic import next_change
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
        self.accelerators, self.devices = accelerators, accelerators.devices
        self.switch: Switch | None = None
        self._beside: asyncio.Task[None] | None = None
        self._decision: Decision | None = None
        self._sampled_tokens = 0.0
        self._began = self._standstill_s = 0.0
        self._pending = 0
        self._steps = 0
        """Since the last window was closed; None were closed before the first, which is over after one step: it only shows
        how the pipeline fills."""
        self._first = True
        self._given_up: dict[int, str] = {}
        self._totals = dict.fromkeys(
            ("controller/switches", "controller/failed_switches", "controller/refused_moves",
             "controller/refused_requests"), 0.0
        )  # fmt: skip
        self._last_cost: dict[str, float] = {}

    # -- deciding --------------------------------------------------------------------------------------------------

    async def consult(self, sampled_tokens: float, method: str) -> dict[str, float]:
        """Hear requests and, at the end of a window or where somebody asked for a move, the policy.

        sampled_tokens: since the last call. method: `tree` or `dense`, what trained. Returns metrics of the step.
        """
        self._sampled_tokens += sampled_tokens
        await self._hear_requests()
        metrics = self._last_cost
        self._last_cost = {}
        self._steps += 1
        enough = 1 if self._first else self.config.allocation.window_steps
        if self.switch is None and (self._pending or self._steps >= enough):
            metrics = metrics | await self._close_window(method)
        split = self.devices.split if self.switch is None else self.switch.split
        return metrics | self._totals | {
            "controller/rollout": float(split.rollout),
            "controller/trainer": float(split.trainer),
            "controller/switching": float(self.switch is not None),
        }

    async def discard_requests(self) -> None:
        """Refuse what was asked before the run was there to hear it."""
        taken = take_requests(self.config.directory)
        for name in [request.name for request in taken.requests] + list(taken.faults):
            self._refuse(name, "it was made before the run started")

    async def _hear_requests(self) -> None:
        taken = take_requests(self.config.directory)
        for name, fault in taken.faults.items():
            self._refuse(name, fault)
        for request in taken.requests:
            try:
                self._pending = await self.controller.request.remote(request.move, request.count)
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
        observation, decision, self._pending = await self.controller.close_window.remote(self._sampled_tokens, method)
        self._sampled_tokens, self._decision = 0.0, decision
        self._steps, self._first = 0, False
        self._totals["controller/refused_moves"] += decision.move is None and decision.best != decision.current
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
            switch, reason = await self._change_of_the_cluster()
            if switch is None and decision is not None and decision.move is not None:
                device = self.devices.candidate(decision.move)
                switch, reason = Switch.of(decision.move, device, self.devices.split), decision.reason
            if switch is None:
                return None
            await self._begin(switch, reason)
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
                self._beside = None
            if self.switch is not None:  # or it would begin the next
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

    async def _change_of_the_cluster(self) -> tuple[Switch | None, str]:
        """What `allocation.elastic` asks for now, and why."""
        if not self.config.allocation.elastic:
            return None, ""
        accelerators = self.accelerators
        await accelerators.look()
        favourite = await self.controller.place.remote()
        switch = next_change(
            self.devices, accelerators.placed, accelerators.usable, self._given_up, lambda split: favourite
        )
        if switch is None:
            return None, ""
        if switch.giver is None:
            return switch, "its node has joined the cluster"
        return switch, "its node leaves the cluster" if switch.taker is None else "the last device of a side leaves"

    async def _begin(self, switch: Switch, reason: str) -> None:
        self.switch = switch
        self._began, self._standstill_s = time.monotonic(), 0.0
        await self.controller.switch_began.remote()
        if switch.giver is None:
            self.devices.claim(switch.device, switch.side)
        self.tracker.event(
            "switch_began", change=switch.name, move=switch.move, device=switch.device, split=list(switch.before),
            reason=reason, node=self.accelerators.placed.get(switch.device),
        )  # fmt: skip
        self.tracker.progress.note(f"accelerator {switch.device} {switch.name}: {reason}")

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
        """A switch costs the trainers' standstill, and one accelerator's share of the cluster for as long as it took."""
        switch, self.switch = self.switch, None
        seconds = time.monotonic() - self._began
        cost_s = self._standstill_s + seconds / sum(switch.before)
        done = switch.outcome in (Outcome.MOVED, Outcome.LEFT)
        self._totals["controller/switches" if done else "controller/failed_switches"] += 1
        self._last_cost = {"controller/switch_cost_s": cost_s, "controller/standstill_s": self._standstill_s}
        if switch.owner is None and self.config.allocation.elastic:
            self._given_up[switch.device] = self.accelerators.placed.get(switch.device, "")
        await self.controller.switch_finished.remote(switch.move, self.devices.split, cost_s)
        self.tracker.event(
            "switch_finished", change=switch.name, move=switch.move, device=switch.device, outcome=switch.outcome,
            split=list(self.devices.split), failures=switch.failures, seconds=seconds, standstill_s=self._standstill_s,
            cost_s=cost_s,
        )  # fmt: skip
        what = f"accelerator {switch.device} {'went' if done else 'did not go'} {switch.name}"
        why = f" ({'; '.join(switch.failures)})" if switch.failures else ""
        self.tracker.progress.note(f"{what}: {self.devices.split} now, {seconds:.0f} s, cost {cost_s:.1f} s{why}")
