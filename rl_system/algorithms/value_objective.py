"""The critic's loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rl_system.algorithms.metering import Meter
from rl_system.algorithms.objective import Pairs
from rl_system.algorithms.policy_objective import select
from rl_system.algorithms.statistics import Statistics


@dataclass(frozen=True, slots=True)
class ValueObjective:
    """`½ · max((V − R)², (clip(V, V_old − clip, V_old + clip) − R)²)`, weighted: PPO's clipped value loss (as in
    OpenAI Baselines' ppo2; Engstrom et al., arXiv 2005.12729, section 3). The batch carries `values` (V_old) and
    `returns` (R); outputs are the critic's values. clip: None for the plain squared error.
    """

    clip: float | None = 0.2
    coupled: bool = False
    needs_entropy: bool = False

    def __call__(
        self, outputs: torch.Tensor, entropies: torch.Tensor | None, pairs: Pairs
    ) -> tuple[torch.Tensor, Statistics]:
        if pairs.values is None or pairs.returns is None:
            raise ValueError("the critic's loss needs the batch's values and returns")
        meter = Meter()
        alive = pairs.weights.nonzero().squeeze(1)
        values, pairs = outputs[alive], select(pairs, alive)
        loss = (values - pairs.returns).square() / 2
        if self.clip is not None:
            held = pairs.values + (values - pairs.values).clamp(-self.clip, self.clip)
            clipped = (held - pairs.returns).square() / 2
            meter.mean("train/value_clip_fraction", clipped > loss)
            loss = torch.maximum(loss, clipped)
        meter.mean("train/value_loss", loss)
        return (pairs.weights * loss).sum(), meter.statistics()
