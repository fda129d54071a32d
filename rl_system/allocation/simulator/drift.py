"""How a workload changes while a run goes on: factors on the profile's numbers, as a function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Regime:
    """Factors from `step` on. Answers that grow are `sampled_tokens` and `sequence_tokens` above 1."""

    step: int = 0
    sampled_tokens: float = 1.0
    tool_s: float = 1.0
    sequence_tokens: float = 1.0
    compression: float = 1.0
    generation_speed: float = 1.0
    training_speed: float = 1.0


FACTORS = tuple(field.name for field in fields(Regime) if field.name != "step")


@dataclass(frozen=True)
class Drift:
    """Regimes in order of their step. gradual: geometric interpolation between them instead of jumps."""

    regimes: tuple[Regime, ...] = (Regime(),)
    gradual: bool = False

    def __post_init__(self) -> None:
        steps = [regime.step for regime in self.regimes]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise ValueError(f"drift: regimes begin at steps {steps}; 0 comes first, and no step twice")

    def at(self, step: int) -> Regime:
        last = max(i for i, regime in enumerate(self.regimes) if regime.step <= step)
        here = self.regimes[last]
        if not self.gradual or last + 1 == len(self.regimes):
            return here
        after = self.regimes[last + 1]
        share = (step - here.step) / (after.step - here.step)
        between = {
            name: math.exp((1 - share) * math.log(getattr(here, name)) + share * math.log(getattr(after, name)))
            for name in FACTORS
        }
        return Regime(step, **between)
