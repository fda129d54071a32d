"""From what happens in a run to the observation of one window.

Owns the meters of both sides. A run's controller and the simulator report the same events here, so the policy is told
the same quantities by both. Every share is a time average over exactly the window.
"""

from __future__ import annotations

from rl_system.allocation.meters import LevelMeter, StateMeter
from rl_system.allocation.observation import Observation, RolloutSide, Split, SwitchCost, TrainerSide


class ObservationWindow:
    """Collects one window after another. Times are seconds of any monotone clock."""

    def __init__(self, now: float, *, slots: int, groups_per_batch: int, max_staleness: int) -> None:
        self.groups_per_batch = groups_per_batch
        self.max_staleness = max_staleness
        self.slots = slots
        self.empty_slots = LevelMeter(slots, now)
        """Episode slots that are empty; they are filled at once whenever there is a permit."""
        self.in_tools = LevelMeter(0, now)
        """Running episodes that are outside the engines."""
        self.engines = LevelMeter(0, now)
        """Accelerators that generate or could: those of the rollout side that are up, and lent ones."""
        self.busy_engines = LevelMeter(0, now)
        """Those of them whose engine has a request."""
        self.trainer = StateMeter("waiting", now)
        """waiting (no batch), updating, or rebuilding (a switch). Told by `trainer_is`."""
        self._meters = (self.empty_slots, self.in_tools, self.engines, self.busy_engines, self.trainer)
        self._open(now)
        self._disturbed = True  # The pipeline is still filling up.

    def _open(self, now: float) -> None:
        self._opened = now
        for meter in self._meters:
            meter.reopen(now)
        self._latencies: list[float] = []
        self._failures = 0
        self._updates = 0
        self._update_seconds = 0.0
        self._trained_groups = 0
        self._sequence_tokens = 0.0
        self._unique_tokens = 0.0
        self._staleness = 0.0
        self._empty_waiting = 0.0
        """Slot-seconds that were empty while the trainers waited."""
        self._empty_before = 0.0
        """Slot-seconds that were empty before the trainers' present state."""
        self._repeated = 0.0
        self._overhead_seconds = 0.0
        self._disturbed = False
        self._switches: list[SwitchCost] = []

    def group_finished(self, latency_s: float) -> None:
        """A group that can be trained on is complete, `latency_s` after it was started."""
        self._latencies.append(latency_s)

    def trainer_is(self, state: str, now: float) -> None:
        self._settle_stalls(now)
        self.trainer.switch(state, now)

    def _settle_stalls(self, now: float) -> None:
        empty = self.empty_slots.area(now)
        if self.trainer.state == "waiting":
            self._empty_waiting += empty - self._empty_before
        self._empty_before = empty

    def episode_failed(self) -> None:
        self._failures += 1

    def update_finished(
        self,
        seconds: float,
        groups: int,
        sequence_tokens: float,
        unique_tokens: float,
        staleness: float,
        repeated: float = 0.0,
        overhead_s: float = 0.0,
    ) -> None:
        """A policy update of `seconds` without waiting. unique_tokens: of the tree of its whole batch. staleness: mean over
        its groups. repeated, overhead_s: see `TrainerSide`.
        """
        self._updates += 1
        self._update_seconds += seconds
        self._trained_groups += groups
        self._sequence_tokens += sequence_tokens
        self._unique_tokens += unique_tokens
        self._staleness += staleness
        self._repeated += repeated
        self._overhead_seconds += overhead_s

    def disturb(self) -> None:
        """The window's rates belong to no split: a switch or a recovery is going on."""
        self._disturbed = True

    def switch_finished(self, cost: SwitchCost) -> None:
        self._switches.append(cost)
        self._disturbed = True

    @property
    def updates(self) -> int:
        return self._updates

    def close(
        self,
        now: float,
        *,
        step: int,
        split: Split,
        sampled_tokens: float,
        queue: int,
        method: str,
        steps_left: int | None = None,
    ) -> Observation:
        """The observation of the window that ends now, and a new window. sampled_tokens: of the whole window."""
        seconds = now - self._opened
        if seconds <= 0:
            raise ValueError("window: it has no length")
        self._settle_stalls(now)
        empty = self.empty_slots.area(now)
        running = self.slots * seconds - empty
        waiting = self.trainer.share("waiting", now)
        updating_s = (1 - waiting) * seconds
        in_updates = (empty - self._empty_waiting) / (self.slots * updating_s) if updating_s > 0 else 0.0
        engine_s = self.engines.area(now)
        finished = len(self._latencies)
        rollout = RolloutSide(
            accelerators=split.rollout,
            groups_per_s=finished / seconds,
            tokens_per_s=sampled_tokens / seconds,
            idle=_share(1 - self.busy_engines.area(now) / engine_s) if engine_s > 0 else 1.0,
            waiting=_share(empty / seconds / self.slots),
            waiting_in_updates=_share(in_updates),
            tool_share=_share(self.in_tools.area(now) / running) if running > 0 else 0.0,
            group_latency_s=sum(self._latencies) / finished if finished else 0.0,
            slowest_group_s=max(self._latencies, default=0.0),
            failures=self._failures,
        )
        trainer = TrainerSide(
            accelerators=split.trainer,
            groups_per_s=self._trained_groups / seconds,
            tokens_per_s=self._sequence_tokens / seconds,
            seconds_per_update=self._update_seconds / self._updates if self._updates else 0.0,
            waiting=waiting,
            compression=max(self._sequence_tokens / self._unique_tokens, 1.0) if self._unique_tokens else 1.0,
            repeated=self._repeated / self._updates if self._updates else 0.0,
            overhead_s=self._overhead_seconds / self._updates if self._updates else 0.0,
            method=method,
        )
        observation = Observation(
            step=step,
            seconds=seconds,
            rollout=rollout,
            trainer=trainer,
            groups_per_batch=self.groups_per_batch,
            max_staleness=self.max_staleness,
            concurrency=self.slots,
            queue=queue,
            staleness=self._staleness / self._updates if self._updates else 0.0,
            disturbed=self._disturbed,
            switches=tuple(self._switches),
            steps_left=steps_left,
        )
        self._open(now)
        return observation


def _share(value: float) -> float:
    """Rounding of long sums may leave [0, 1] by a hair; anything more is left for the observation to refuse."""
    return min(max(value, 0.0), 1.0) if -1e-6 < value < 1 + 1e-6 else value
