"""Every objective in plain Python: one pair at a time, from the formulas, in float64.

`frozen` are the current logprobs as constants: what the formulas put under a stop-gradient. Differences with respect to
`current` alone are therefore the gradient that an objective must have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from rl_system.algorithms.objective import Pairs
from rl_system.config.algorithm import AlgorithmConfig


@dataclass
class Sample:
    """Lists of P numbers; None where the batch does not carry them."""

    sequence: list[int]
    behaviour: list[float]
    advantage: list[float]
    weight: list[float]
    version: list[int]
    proximal: list[float] | None = None
    reference: list[float] | None = None

    def pairs(self, dtype: torch.dtype = torch.float64) -> Pairs:
        def tensor(values: list[float] | None) -> torch.Tensor | None:
            return None if values is None else torch.tensor(values, dtype=dtype)

        return Pairs(
            sequence=torch.tensor(self.sequence),
            behaviour_logprobs=tensor(self.behaviour),
            advantages=tensor(self.advantage),
            weights=tensor(self.weight),
            versions=torch.tensor(self.version),
            proximal_logprobs=tensor(self.proximal),
            reference_logprobs=tensor(self.reference),
        )


def random_sample(
    rng: np.random.Generator, sequences: int = 4, pairs: int = 30
) -> tuple[list[float], list[float], Sample]:
    """Current logprobs, entropies, and a sample whose ratios reach well beyond every bound."""
    current = -rng.random(pairs) * 3
    return (
        current.tolist(),
        rng.random(pairs).tolist(),
        Sample(
            sequence=(rng.integers(0, sequences, pairs) * 7).tolist(),
            behaviour=(current + rng.normal(size=pairs) * 0.6).tolist(),
            advantage=rng.normal(size=pairs).tolist(),
            weight=(rng.random(pairs) / pairs).tolist(),
            version=rng.integers(0, 4, pairs).tolist(),
            proximal=(current + rng.normal(size=pairs) * 0.3).tolist(),
            reference=(current + rng.normal(size=pairs) * 0.4).tolist(),
        ),
    )


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def clipped(ratio: float, advantage: float, config: AlgorithmConfig) -> float:
    gain = min(ratio * advantage, clip(ratio, 1 - config.clip_low, 1 + config.clip_high) * advantage)
    if config.dual_clip is not None and advantage < 0:
        gain = max(gain, config.dual_clip * advantage)
    return -gain


def loss(
    current: list[float],
    entropies: list[float],
    sample: Sample,
    config: AlgorithmConfig,
    version: int | None = None,
    frozen: list[float] | None = None,
) -> float:
    """Weighted sum over pairs of what `config` describes."""
    frozen = current if frozen is None else frozen
    live = [i for i, weight in enumerate(sample.weight) if weight != 0]
    members = {s: [i for i in live if sample.sequence[i] == s] for s in set(sample.sequence)}
    total = 0.0
    for i in live:
        mates = members[sample.sequence[i]]
        policy = policy_loss(i, mates, current, frozen, sample, config, version)
        if config.objective != "sft":
            policy *= correction(i, mates, frozen, sample, config, version)
        if config.kl_coefficient and config.kl_in == "loss":
            delta = current[i] - sample.reference[i]
            kl = delta**2 / 2 if config.kl_estimator == "k2" else math.exp(-delta) - 1 + delta
            policy += config.kl_coefficient * kl
        total += sample.weight[i] * (policy - config.entropy_coefficient * entropies[i])
    return total


def policy_loss(i, mates, current, frozen, sample, config, version) -> float:
    advantage, behaviour = sample.advantage[i], sample.behaviour[i]
    ratio = math.exp(current[i] - behaviour)
    match config.objective:
        case "sft":
            return -current[i]
        case "reinforce":
            return -advantage * current[i]
        case "ppo_clip":
            return clipped(ratio, advantage, config)
        case "decoupled_ppo":
            return clipped(math.exp(current[i] - proximal(i, frozen, sample, config, version)), advantage, config)
        case "cispo":
            weight = clip(math.exp(frozen[i] - behaviour), 1 - config.clip_low, 1 + config.clip_high)
            return -weight * advantage * current[i]
        case "gspo":
            mean = sum(current[j] - sample.behaviour[j] for j in mates) / len(mates)
            return clipped(math.exp(mean), advantage, config)
    raise AssertionError(config.objective)


def proximal(i, frozen, sample, config, version) -> float:
    if config.proximal == "loglinear":
        staleness = version - sample.version[i]
        alpha = 1 / staleness if staleness > 0 else 0.0
        return alpha * sample.behaviour[i] + (1 - alpha) * frozen[i]
    return frozen[i] if sample.proximal is None else sample.proximal[i]


def correction(i, mates, frozen, sample, config, version) -> float:
    def ratio(j: int) -> float:
        return math.exp(proximal(j, frozen, sample, config, version) - sample.behaviour[j])

    cap = math.inf if config.behaviour_cap is None else config.behaviour_cap
    match config.correction:
        case "none":
            factor = 1.0
        case "tis":
            factor = min(ratio(i), cap)
        case "icepop":
            factor = ratio(i) if config.behaviour_floor <= ratio(i) <= cap else 0.0
        case "sequence_rejection":
            mean = math.exp(sum(math.log(ratio(j)) for j in mates) / len(mates))
            inside = config.sequence_ratio_low <= mean <= config.sequence_ratio_high
            factor = min(ratio(i), cap) if inside else 0.0
        case _:
            raise AssertionError(config.correction)
    if config.objective in ("ppo_clip", "cispo", "gspo"):
        return float(factor > 0)
    return factor
