"""From a configuration to the loss of a batch: a surrogate, a correction of what another policy sampled, regularisers.

    loss = Σ weight · (correction · surrogate + kl_coefficient · KL − entropy_coefficient · entropy)

Pairs of weight 0 do not exist here: they are taken out before anything is computed, so that a NaN behind a mask reaches
neither the loss nor a gradient nor a metric. Metrics carry their full names.
"""

from __future__ import annotations

from dataclasses import fields

import torch

from rl_system.algorithms import registry
from rl_system.algorithms.kl import needs_reference, reference_kl
from rl_system.algorithms.metering import Meter
from rl_system.algorithms.objective import Objective, Pairs
from rl_system.algorithms.proximal import proximal_logprobs
from rl_system.algorithms.statistics import Statistics
from rl_system.algorithms.surrogate import Tokens, bounded
from rl_system.config.algorithm import AlgorithmConfig


def make_objective(config: AlgorithmConfig, version: int | None = None) -> Objective:
    """The objective that `config` describes; UserError where it names one that is not there.

    version: of the policy that is being updated; needed where the treatment depends on staleness (`proximal:
    loglinear`), so make the objective anew for every update.
    """
    return PolicyObjective(config, version)


class PolicyObjective:
    """`Objective` made of the configured parts; holds no state between calls."""

    def __init__(self, config: AlgorithmConfig, version: int | None) -> None:
        self._config = config
        self._version = version
        self._surrogate = registry.find("objectives", config.objective)
        self._correction = registry.find("corrections", config.correction)
        corrected = self._surrogate.anchor is not None
        self.coupled: bool = self._surrogate.coupled or (corrected and self._correction.coupled)
        self.needs_entropy: bool = config.measure_entropy or config.entropy_coefficient != 0

    def __call__(
        self, outputs: torch.Tensor, entropies: torch.Tensor | None, pairs: Pairs
    ) -> tuple[torch.Tensor, Statistics]:
        meter = Meter()
        alive = pairs.weights.nonzero().squeeze(1)
        logprobs, pairs = outputs[alive], select(pairs, alive)
        loss = self._policy_loss(logprobs, pairs, meter)
        if needs_reference(self._config):
            loss = loss + self._config.kl_coefficient * reference_kl(logprobs, pairs, self._config, meter)
        if self.needs_entropy:
            if entropies is None:
                raise ValueError("the objective needs entropies, but the executor gave none")
            meter.mean("train/entropy", entropies[alive])
        if self._config.entropy_coefficient != 0:
            loss = loss - self._config.entropy_coefficient * entropies[alive]
        return (pairs.weights * loss).sum(), meter.statistics()

    def _policy_loss(self, logprobs: torch.Tensor, pairs: Pairs, meter: Meter) -> torch.Tensor:
        """Corrected surrogate loss of each pair [P]."""
        anchor = self._surrogate.anchor
        if anchor is None:
            tokens = Tokens(logprobs, logprobs.detach(), pairs.advantages, pairs.sequence)
            return self._surrogate(tokens, self._config, meter)
        meter.mean("train/advantage_mean", pairs.advantages)
        meter.mean("train/advantage_size", pairs.advantages.abs())
        proximal = proximal_logprobs(logprobs.detach(), pairs, self._config, self._version)
        old = proximal if anchor == "proximal" else pairs.behaviour_logprobs
        tokens = Tokens(logprobs, old, pairs.advantages, pairs.sequence)
        _measure_ratio(tokens.log_ratio().detach(), meter)
        loss = self._surrogate(tokens, self._config, meter)

        log_ratio = bounded(proximal - pairs.behaviour_logprobs)
        factor = self._correction(log_ratio, pairs.sequence, self._config, meter)
        if anchor == "behaviour":
            # The objective's own ratio is the importance weight already; of a correction only its mask counts.
            factor = (factor > 0).to(factor.dtype)
        _measure_correction(log_ratio, factor, meter)
        return factor * loss


def select(pairs: Pairs, rows: torch.Tensor) -> Pairs:
    """The pairs at `rows` [R] of every field that is present."""
    values = {each.name: getattr(pairs, each.name) for each in fields(pairs)}
    return Pairs(**{name: None if value is None else value[rows] for name, value in values.items()})


def _measure_ratio(log_ratio: torch.Tensor, meter: Meter) -> None:
    """log_ratio: current to anchor policy [P]. approx_kl: the k3 estimate of KL(anchor ‖ current), never negative."""
    ratio = log_ratio.exp()
    meter.mean("train/ratio_mean", ratio)
    meter.maximum("train/ratio_max", ratio)
    meter.mean("train/approx_kl", ratio - 1 - log_ratio)


def _measure_correction(log_ratio: torch.Tensor, factor: torch.Tensor, meter: Meter) -> None:
    """log_ratio: proximal to behaviour [P]; factor: what the correction made of it [P]."""
    ratio = log_ratio.exp()
    meter.mean("off_policy/behaviour_ratio_mean", ratio)
    meter.maximum("off_policy/behaviour_ratio_max", ratio)
    meter.mean("off_policy/behaviour_kl", ratio - 1 - log_ratio)
    meter.mean("off_policy/masked_fraction", factor == 0)
    meter.effective("off_policy/effective_sample_size", factor)
