"""One simulated run: trainers, controller and everything between, on simulated time.

The ledger, the observation window and the policy are the ones of a real run; the simulator only takes the place of the
devices. Everything random comes from one generator per source, seeded from `seed`, so a run repeats to the bit, and
runs of one seed have the same groups and the same slow spells whatever their splits: what differs is the strategy.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import simpy

from rl_system.allocation.decision import Move
from rl_system.allocation.growth import largest_part
from rl_system.allocation.ledger import StalenessLedger
from rl_system.allocation.observation import Split, SwitchCost
from rl_system.allocation.policy import SplitPolicy
from rl_system.allocation.profile import Profile
from rl_system.allocation.simulator.drift import Drift
from rl_system.allocation.simulator.fleet import Engine, Fleet
from rl_system.allocation.simulator.pool import Pool
from rl_system.allocation.simulator.result import SimulationResult, StepRow
from rl_system.allocation.window import ObservationWindow
from rl_system.config.allocation import AllocationConfig

Process = Generator[simpy.Event, object, None]


class Simulation:
    """`lend`: while the trainers wait, their devices generate (time lending; the split itself stays)."""

    def __init__(
        self,
        profile: Profile,
        method: str,
        allocation: AllocationConfig,
        *,
        steps: int,
        seed: int = 0,
        drift: Drift | None = None,
        lend: bool = False,
    ) -> None:
        self.profile, self.training, self.method = profile, profile.training[method], method
        self.allocation, self.steps, self.lend = allocation, steps, lend
        self.drift = drift or Drift()
        self.split = Split(allocation.rollout, allocation.trainer)
        self.policy = SplitPolicy(allocation)
        workload = profile.workload
        self.env = simpy.Environment()
        self.ledger = StalenessLedger(workload.groups_per_batch, workload.max_staleness)
        self.window = ObservationWindow(
            0.0,
            slots=workload.concurrency,
            groups_per_batch=workload.groups_per_batch,
            max_staleness=workload.max_staleness,
        )
        groups, breaks, self._update_rng, engines, self._failure_rng = np.random.default_rng(seed).spawn(5)
        self.pool = Pool(self.env, profile, self.ledger, self.window, groups, breaks, self._wake_trainer)
        self.fleet = Fleet(
            self.env,
            profile.generation,
            self.pool.turn_sampled,
            self._busy_changed,
            lambda size: self.window.engines.set(size, self.env.now),
            engines,
        )
        self.pool.fleet = self.fleet
        self.result = SimulationResult(workload.groups_per_batch)
        self._arrival: simpy.Event | None = None
        self._switching = False
        self._joining: Move | None = None
        self._switch_began = 0.0
        self._sampled_before = 0.0
        self._lent: list[Engine] = []
        self._last_wait = float("inf")

    def run(self) -> SimulationResult:
        self.fleet.start(self.split.rollout)
        self.pool.regime = self.drift.at(0)
        self.fleet.set_factor(self.pool.regime.generation_speed)
        if self.profile.generation.failures_per_hour:
            self.env.process(self._fail())
        done = self.env.process(self._train())
        self.pool.fill()
        self.env.run(until=done)
        return self.result

    # -- training ------------------------------------------------------------------------------------------------

    def _train(self) -> Process:
        for step in range(1, self.steps + 1):
            waiting_since = self.env.now
            taken = yield from self._next_batch()
            groups = [self.pool.finished.pop(group_id) for group_id in taken]
            waited = self.env.now - waiting_since
            self.window.trainer_is("updating", self.env.now)
            sequence, unique = sum(g.sequence_tokens for g in groups), sum(g.unique_tokens for g in groups)
            update_s = self._update_seconds(sequence, unique)
            yield self.env.timeout(update_s)
            staleness = [step - 1 - group.version for group in groups]
            mean = sum(staleness) / len(staleness)
            training = self.training
            self.window.update_finished(
                update_s, len(groups), sequence, unique, mean, training.repeated, training.overhead_s
            )
            self.result.rows.append(StepRow(self.env.now, self.split, update_s, waited, mean, max(staleness)))
            self._publish(step)
            yield from self._boundary(step)

    def _next_batch(self) -> Generator[simpy.Event, object, list[int]]:
        self.window.trainer_is("waiting", self.env.now)
        since, lending = self.env.now, None
        while (taken := self.ledger.take_batch()) is None:
            if self.lend and lending is None and self._last_wait > 2 * self.profile.switch.lend_s:
                lending = self.env.process(self._lend_devices())
            self._arrival = self.env.event()
            yield self._arrival
        self._arrival = None
        self._last_wait = self.env.now - since
        if lending is not None:
            yield from self._return_devices(lending)
        return taken

    def _wake_trainer(self) -> None:
        enough = len(self.pool.finished) >= self.profile.workload.groups_per_batch
        if enough and self._arrival is not None and not self._arrival.triggered:
            self._arrival.succeed()

    def _update_seconds(self, sequence_tokens: float, unique_tokens: float) -> float:
        """`overhead + work·(f + (1 − f)/n)`, with noise; see `Training`."""
        training, regime = self.training, self.pool.regime
        work = unique_tokens * self.profile.workload.compression if training.shares_prefixes else sequence_tokens
        seconds = work / (training.tokens_per_s * regime.training_speed)
        noise = float(np.exp(training.spread * self._update_rng.standard_normal()))
        return training.overhead_s + seconds * largest_part(self.split.trainer, training.repeated) * noise

    def _publish(self, step: int) -> None:
        self.ledger.serve(step)
        self.fleet.pause(self.profile.generation.sync_s)
        self.pool.regime = self.drift.at(step)
        self.fleet.set_factor(self.pool.regime.generation_speed)
        self.pool.fill()

    # -- the controller's part -----------------------------------------------------------------------------------

    def _boundary(self, step: int) -> Process:
        if self._joining is Move.TO_TRAINER:
            yield from self._rebuild()
            self.split = Split(self.split.rollout, self.split.trainer + 1)
            self._end_switch(Move.TO_TRAINER, self.profile.switch.release_s)
        enough = self.allocation.window_steps if self.result.decisions else 1
        if self._switching or (self.window.updates < enough and not self.policy.pending):
            return
        sampled = self.fleet.sampled_tokens()
        observation = self.window.close(
            self.env.now,
            step=step,
            split=self.split,
            sampled_tokens=sampled - self._sampled_before,
            queue=len(self.pool.finished),
            method="tree" if self.training.shares_prefixes else "dense",
        )
        self._sampled_before = sampled
        decision = self.policy.observe(observation)
        self.result.decisions.append((step, decision))
        if decision.move is not None:
            self.result.moves.append((step, decision.move))
            yield from self._begin_switch(decision.move)

    def _begin_switch(self, move: Move) -> Process:
        """One owner at every instant: a device first leaves the one side, is nobody's, and then joins the other."""
        self._switching, self._switch_began = True, self.env.now
        self.window.disturb()
        if move is Move.TO_TRAINER:
            self.fleet.stop(self.fleet.newest())
            self.split = Split(self.split.rollout - 1, self.split.trainer)
            self.env.timeout(self.profile.switch.release_s).callbacks.append(self._released)
        else:
            yield from self._rebuild()
            self.split = Split(self.split.rollout, self.split.trainer - 1)
            self.env.timeout(self.profile.switch.engine_start_s).callbacks.append(self._engine_started)

    def _released(self, _: simpy.Event) -> None:
        self._joining = Move.TO_TRAINER

    def _engine_started(self, _: simpy.Event) -> None:
        self.fleet.start(1)
        self.split = Split(self.split.rollout + 1, self.split.trainer)
        self._end_switch(Move.TO_ROLLOUT, self.env.now - self._switch_began)

    def _rebuild(self) -> Process:
        self.window.trainer_is("rebuilding", self.env.now)
        yield self.env.timeout(self.profile.switch.rebuild_s)

    def _end_switch(self, move: Move, nobodys_s: float) -> None:
        """A move costs the trainers' standstill, and the share of the cluster that was nobody's for a while."""
        self._switching, self._joining = False, None
        seconds = self.profile.switch.rebuild_s + nobodys_s / self.allocation.accelerators
        self.window.switch_finished(SwitchCost(move is Move.TO_ROLLOUT, seconds))

    # -- devices that come and go --------------------------------------------------------------------------------

    def _busy_changed(self, change: int) -> None:
        self.window.busy_engines.set(self.window.busy_engines.level + change, self.env.now)

    def _lend_devices(self) -> Process:
        yield self.env.timeout(self.profile.switch.lend_s)
        if self._arrival is not None:
            self._lent = self.fleet.start(self.split.trainer)

    def _return_devices(self, lending: simpy.Process) -> Process:
        if lending.is_alive:
            yield lending
        for engine in self._lent:
            self.fleet.stop(engine)
        self._lent = []
        yield self.env.timeout(self.profile.switch.lend_s)

    def _fail(self) -> Process:
        while True:
            hourly = self.profile.generation.failures_per_hour * self.split.rollout
            yield self.env.timeout(self._failure_rng.exponential(3600 / hourly))
            engines = [engine for engine in self.fleet.engines.values() if engine not in self._lent]
            if len(engines) < 2:
                continue
            self.fleet.stop(engines[self._failure_rng.integers(len(engines))], keep_tokens=False)
            self.window.disturb()
            self.env.timeout(self.profile.switch.engine_start_s).callbacks.append(self._recovered)

    def _recovered(self, _: simpy.Event) -> None:
        self.fleet.start(1)
        self.window.disturb()


def simulate(
    profile: Profile,
    method: str,
    split: Split,
    *,
    steps: int,
    seed: int = 0,
    drift: Drift | None = None,
    lend: bool = False,
    **allocation: object,
) -> SimulationResult:
    """A run that starts at `split`; static unless `allocation` says `mode="auto"`."""
    config = AllocationConfig(rollout=split.rollout, trainer=split.trainer, **({"mode": "off"} | allocation))
    return Simulation(profile, method, config, steps=steps, seed=seed, drift=drift, lend=lend).run()
