"""Groups a second of any split, predicted from the windows seen so far.

Each window gives a measured capacity of either side, in tokens a second, so that a change of the workload (longer answers, more
sharing) shows in the tokens of a group and not in the fitted rates. `growth` says how either side grows with its
accelerators, `RateFit` learns what that misses, and `end_to_end` joins the two by how `Stalls` saw them held back.
"""

from __future__ import annotations

import math
from typing import Any

from rl_system.allocation.growth import HALF_BATCH, ClosedLoop, overhead_of, training_speedup
from rl_system.allocation.observation import Observation, Split
from rl_system.allocation.pipeline import Stalls, end_to_end
from rl_system.allocation.rates import RateFit
from rl_system.allocation.tally import Tally

SMOOTHING = 0.2
"""Weight of the newest window in what a group is worth in tokens, and in what time goes into."""
MOST_WAITING = 0.95
"""Share of the episodes above which the few that are left show nothing of the others."""
STALLED_DEVIATION = 0.3
"""Standard deviation of what generation could do, for each unit of the logarithm of what it was held back."""


class Forecast:
    def __init__(self) -> None:
        self._generation, self._training = RateFit(), RateFit()
        self._groups = Tally(SMOOTHING)
        """Groups that each side was done with, and the tokens that it spent on them."""
        self._episodes = Tally(SMOOTHING)
        """Sampled tokens and what the episodes' time went into; see `ClosedLoop`."""
        self._updates = Tally(SMOOTHING)
        """Updates and what their time went into; see `training_speedup`."""
        self._slots = 0.0
        self._groups_per_batch = 1
        self._stalls: Stalls | None = None

    @property
    def ready(self) -> bool:
        """Both sides were measured."""
        return self._generation.measurements > 0 and self._training.measurements > 0

    # -- learning ------------------------------------------------------------------------------------------------

    def learn(self, observation: Observation) -> None:
        """From an undisturbed window."""
        if self._stalls is None:
            self._stalls = Stalls(observation.max_staleness)
        self._stalls.update(observation)
        self._slots, self._groups_per_batch = observation.concurrency, observation.groups_per_batch
        self._learn_generation(observation)
        self._learn_training(observation)

    def _learn_generation(self, observation: Observation) -> None:
        """The capacity is what was sampled, by the share of the slots that were taken."""
        rollout, seconds = observation.rollout, observation.seconds
        self._groups.add(finished=rollout.groups_per_s * seconds, sampled=rollout.tokens_per_s * seconds)
        if not (rollout.groups_per_s > 0 and rollout.tokens_per_s > 0):
            return
        taken = 1 - min(rollout.waiting, MOST_WAITING)
        in_engines = self._slots * taken * (1 - min(rollout.tool_share, MOST_WAITING))
        busy_engines = rollout.accelerators * (1 - min(rollout.idle, MOST_WAITING))
        self._episodes.add(
            tokens=rollout.tokens_per_s * seconds,
            tools_s=(self._slots * taken - in_engines) * seconds,
            engine_s=in_engines / (in_engines / busy_engines + HALF_BATCH) * seconds,
        )
        broken = rollout.failures / max(rollout.failures + rollout.groups_per_s * seconds, 1.0)
        deviation = math.hypot(STALLED_DEVIATION * math.log(1 / taken), broken)
        growth = self._generation_growth(rollout.accelerators, self._stalls.waiting)
        self._generation.update(growth, rollout.tokens_per_s / taken, deviation)

    def _learn_training(self, observation: Observation) -> None:
        """The capacity is what was computed, by the time that updates took."""
        trainer = observation.trainer
        if not (trainer.groups_per_s > 0 and trainer.seconds_per_update > 0):
            return
        overhead = overhead_of(trainer.seconds_per_update, trainer.overhead_s, trainer.accelerators, trainer.repeated)
        self._updates.add(updates=1.0, repeated=trainer.repeated, overhead=overhead)
        computed, trained = computed_tokens_per_group(observation), trainer.groups_per_s * observation.seconds
        groups_per_busy_s = observation.groups_per_batch / trainer.seconds_per_update
        self._training.update(self._training_growth(trainer.accelerators), groups_per_busy_s * computed)
        self._groups.add(trained=trained, computed=trained * computed)

    # -- predicting ----------------------------------------------------------------------------------------------

    def rate(self, split: Split, current: Split) -> float:
        """Predicted groups/s of `split`, end to end. current: the split of the newest window."""
        training = self._training.rate(*map(self._training_growth, (split.trainer, current.trainer)))
        training /= self._groups.ratio("computed", "trained")
        waiting, updating = (
            self._generation_rate(split, current, stalled) for stalled in (self._stalls.waiting, self._stalls.updating)
        )
        return end_to_end(waiting, updating, training, self._groups_per_batch)

    def _generation_rate(self, split: Split, current: Split, stalled: float) -> float:
        """Groups/s with a share of the slots empty. Few sequences fill an engine badly, so more engines help them less."""
        stalled = min(stalled, MOST_WAITING)
        fitted = self._generation_growth(current.rollout, self._stalls.waiting)
        level = self._generation.rate(fitted, fitted) / self._groups.ratio("sampled", "finished")
        there, here = (self._generation_growth(each.rollout, stalled) for each in (split, current))
        return level * (1 - stalled) * (there / here) ** self._generation.exponent

    def _generation_growth(self, accelerators: int, stalled: float) -> float:
        loop = ClosedLoop(*(self._episodes.ratio(name, "tokens") for name in ("tools_s", "engine_s")))
        slots = self._slots * (1 - min(stalled, MOST_WAITING))
        return loop.rate(accelerators, slots) / loop.rate(1, slots)

    def _training_growth(self, accelerators: int) -> float:
        repeated, overhead = (self._updates.ratio(name, "updates") for name in ("repeated", "overhead"))
        return training_speedup(accelerators, repeated, overhead)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs, as plain JSON values."""
        return {
            "generation": self._generation.state(),
            "training": self._training.state(),
            "groups": self._groups.state(),
            "episodes": self._episodes.state(),
            "updates": self._updates.state(),
            "slots": self._slots,
            "groups_per_batch": self._groups_per_batch,
            "stalls": self._stalls.state() if self._stalls else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._generation.restore(state["generation"])
        self._training.restore(state["training"])
        self._groups.restore(state["groups"])
        self._episodes.restore(state["episodes"])
        self._updates.restore(state["updates"])
        self._slots, self._groups_per_batch = state["slots"], state["groups_per_batch"]
        if state["stalls"] is not None:
            self._stalls = Stalls(0)
            self._stalls.restore(state["stalls"])


def computed_tokens_per_group(observation: Observation) -> float:
    """Tokens that the trainers run through the model for one group: each unique token once with the tree."""
    trainer = observation.trainer
    sharing = trainer.compression if trainer.method == "tree" else 1.0
    return trainer.tokens_per_s / trainer.groups_per_s / sharing
