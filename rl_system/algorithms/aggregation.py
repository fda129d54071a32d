"""The weight of every token's loss, fixed over the whole step before anything is cut.

Invariant: the loss of a step is `Σ weight · loss` over its (sequence, token) pairs, whichever block, minibatch, part
or rank computes them; no partition and no number of ranks can change it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from rl_system.algorithms import registry
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.records import TrainBatch

Aggregation = Literal["token_mean", "sequence_mean", "constant"]

EPSILON = 1e-8
"""Keeps the quotient finite where all advantages agree."""


def prepare_batch(batch: TrainBatch, config: AlgorithmConfig, version: int | None = None) -> TrainBatch:
    """Everything that must see the whole step, in order: the staleness mask, batch normalisation of advantages, loss
    weights. What the trainers have yet to complete they normalise themselves.

    version: of the policy that will be trained on it; needed for the staleness mask.
    """
    if config.mask_staleness_above is not None:
        if version is None:
            raise ValueError("algorithm.mask_staleness_above is set: prepare_batch needs the policy version")
        batch = mask_stale(batch, version - config.mask_staleness_above)
    if normalises_batch(config) and not completed_by_trainers(config):
        batch = normalise_advantages([batch])[0]
    return set_loss_weights(batch, config.aggregation, config.constant_length)


def normalises_batch(config: AlgorithmConfig) -> bool:
    """What `algorithm.normalise_batch` says, or, where it says nothing, the estimator."""
    if config.normalise_batch is not None:
        return config.normalise_batch
    return registry.find("advantages", config.advantage).normalise_batch


def completed_by_trainers(config: AlgorithmConfig) -> bool:
    """Whether advantages are complete only with the trainers, who know values and reference logprobs: a critic has yet
    to judge them, or a divergence is to be taken from them."""
    charged = config.kl_coefficient != 0 and config.kl_in == "reward"
    return charged or registry.find("advantages", config.advantage).critic


def mask_stale(batch: TrainBatch, oldest: int) -> TrainBatch:
    """`batch` with weight 0 on every token of a sequence that has a trained token of a version before `oldest`.

    Whole sequences, so that a ratio of a sequence never rests on a part of it.
    """
    stale = batch.trained & (batch.versions < oldest)
    sequence = np.repeat(np.arange(len(batch)), batch.lengths())
    masked = np.bincount(sequence[stale], minlength=len(batch)) > 0
    return replace(batch, weights=np.where(masked[sequence], 0.0, batch.weights))


def normalise_advantages(
    parts: Sequence[TrainBatch], over_ranks: Callable[[list[float]], list[float]] = list
) -> list[TrainBatch]:
    """`parts` of one step with advantages of mean 0 and (population) deviation 1 over the trained, unmasked tokens of
    all of them; new records.

    REINFORCE++ (arXiv 2501.03262, section 3). Where all are equal they become 0. over_ranks: adds numbers up over the
    ranks where each has some of the parts; called twice, also by a rank that has none.
    """
    values = np.concatenate([part.advantages[_active(part)] for part in parts] or [np.empty(0)]).astype(np.float64)
    total, count = over_ranks([float(values.sum()), float(len(values))])
    mean = total / max(count, 1.0)
    (squares,) = over_ranks([float(np.square(values - mean).sum())])
    deviation = math.sqrt(squares / max(count, 1.0))

    def normalised(part: TrainBatch) -> TrainBatch:
        scaled = (part.advantages.astype(np.float64) - mean) / (deviation + EPSILON)
        return replace(part, advantages=np.where(_active(part), scaled, part.advantages).astype(np.float32))

    return [normalised(part) for part in parts]


def set_loss_weights(batch: TrainBatch, aggregation: Aggregation, constant_length: int | None = None) -> TrainBatch:
    """`batch` with the weights of `aggregation`; a new record, other arrays shared.

    With `S` sequences that have a token in the loss, `n_i` such tokens in sequence `i` and `N` in all, a token weighs

    - token_mean: `1 / N` (DAPO, arXiv 2503.14476, eq. 8): long responses count for as much as they are long;
    - sequence_mean: `1 / (S · n_i)` (GRPO, arXiv 2402.03300, eq. 3): every sequence counts the same;
    - constant: `1 / (S · constant_length)` (Dr. GRPO, arXiv 2503.20783, section 3.2): no bias by length.

    A trained token whose weight is 0 is masked: it keeps weight 0 and stays out of `S`, `n_i` and `N`. Other incoming
    weights are replaced, so applying an aggregation twice is applying it once.
    """
    active = _active(batch)
    before = np.concatenate([[0], np.cumsum(active)])
    counts = before[batch.offsets[1:]] - before[batch.offsets[:-1]]
    total, sequences = int(counts.sum()), int((counts > 0).sum())
    if aggregation == "token_mean":
        per_sequence = np.full(len(batch), 1 / max(total, 1))
    elif aggregation == "sequence_mean":
        per_sequence = 1 / (max(sequences, 1) * np.maximum(counts, 1.0))
    elif aggregation == "constant":
        if not constant_length or constant_length < 1:
            raise ValueError(f"aggregation constant needs a constant_length of at least 1, not {constant_length}")
        per_sequence = np.full(len(batch), 1 / (max(sequences, 1) * constant_length))
    else:
        raise ValueError(f"no aggregation is called {aggregation!r}")
    return replace(batch, weights=np.where(active, np.repeat(per_sequence, batch.lengths()), 0.0))


def _active(batch: TrainBatch) -> np.ndarray:
    """Bool [sequence_tokens]: trained and not masked."""
    return batch.trained & (batch.weights != 0)
