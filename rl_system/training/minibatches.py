"""A step's batch cut into the minibatches of its updates, before anything is partitioned over ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_system.records import TrainBatch


def split_minibatches(batch: TrainBatch, updates: int, generator: np.random.Generator) -> list[TrainBatch]:
    """`updates` minibatches of whole groups, in random order, of about equal numbers of tokens.

    Each weighs as much as the whole batch did, so that the size of a step does not depend on `updates`. With fewer groups
    than updates there are fewer minibatches; none is empty unless the batch is.
    """
    if updates == 1 or len(batch) == 0:
        return [batch]
    groups, group_of = np.unique(batch.group_ids, return_inverse=True)
    tokens = np.bincount(group_of, weights=batch.lengths(), minlength=len(groups))
    order = generator.permutation(len(groups))
    middles = np.cumsum(tokens[order]) - tokens[order] / 2
    part_of_group = np.empty(len(groups), np.int64)
    part_of_group[order] = np.minimum(middles * updates // max(tokens.sum(), 1), updates - 1)
    parts = [np.flatnonzero(part_of_group[group_of] == part) for part in range(updates)]
    return [_with_total_weight(batch.take(part), batch.weights.sum()) for part in parts if len(part)]


def _with_total_weight(part: TrainBatch, total: float) -> TrainBatch:
    own = part.weights.sum()
    return part if own == 0 else replace(part, weights=part.weights * (total / own))
