"""A pipeline in closed form, for tests of the policy: each side's capacity is a power law, the slower side sets the
pace."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rl_system.allocation.observation import Observation, RolloutSide, Split, TrainerSide

TOKENS_PER_GROUP = 1000.0
BATCH = 16


@dataclass(frozen=True)
class Plant:
    """Capacities of one accelerator in groups/s, how they grow, and the noise of a window's rates."""

    generation: float = 1.0
    training: float = 1.0
    generation_exponent: float = 1.0
    training_exponent: float = 1.0
    noise: float = 0.0
    compression: float = 1.0
    method: str = "tree"

    def capacities(self, split: Split) -> tuple[float, float]:
        return (
            self.generation * split.rollout**self.generation_exponent,
            self.training * split.trainer**self.training_exponent,
        )

    def rate(self, split: Split) -> float:
        return min(self.capacities(split))

    def best_rate(self, total: int) -> float:
        return max(self.rate(Split(n, total - n)) for n in range(1, total))

    def observe(
        self, split: Split, step: int, rng: np.random.Generator | None = None, **changes: object
    ) -> Observation:
        rng = rng or np.random.default_rng(0)
        generation, training = (c * float(np.exp(self.noise * rng.standard_normal())) for c in self.capacities(split))
        rate = min(generation, training)
        held = 1 - rate / generation
        rollout = RolloutSide(split.rollout, rate, rate * TOKENS_PER_GROUP, idle=held, waiting=held, waiting_in_updates=held)
        trainer = TrainerSide(
            accelerators=split.trainer,
            groups_per_s=rate,
            tokens_per_s=rate * TOKENS_PER_GROUP,
            seconds_per_update=BATCH / training,
            waiting=1 - rate / training,
            compression=self.compression,
            method=self.method,
        )
        observation = Observation(
            step=step,
            seconds=2 * BATCH / rate,
            rollout=rollout,
            trainer=trainer,
            groups_per_batch=BATCH,
            max_staleness=4,
            concurrency=10_000,  # so many that engines are full whatever their number
        )
        return replace(observation, **changes)
