"""From finished groups to the batch of a step and its minibatches."""

from __future__ import annotations

import numpy as np

from rl_system.records import NO_VERSION, Sequence, TrainBatch


def join_groups(groups: dict[int, list[Sequence]]) -> TrainBatch:
    """One batch of all sequences, in the order of the groups given."""
    sequences = [sequence for group in groups.values() for sequence in group]
    group_ids = [group_id for group_id, group in groups.items() for _ in group]
    return TrainBatch.of(sequences, group_ids)


def minibatches(batch: TrainBatch, count: int) -> list[TrainBatch]:
    """Cut into `count` batches by group, so that the members of a group stay together and share their prefix.

    Groups are dealt out in turn; fewer groups than `count` leave some minibatches out.
    """
    if count == 1:
        return [batch]
    groups = np.unique(batch.group_ids)
    dealt = [groups[first::count] for first in range(min(count, len(groups)))]
    return [batch.take(np.flatnonzero(np.isin(batch.group_ids, ids))) for ids in dealt]


PROBE_TOKENS = 128


def probe_of(batch: TrainBatch) -> TrainBatch:
    """A short text to compare two implementations of a policy on: the last tokens of the batch's first sequence, alone.

    Those of them that a policy sampled count as trained, so that `logprobs` covers them. The first of all never does:
    nothing predicts it. Tokens that no policy would sample stay out, as rounding grows with how unlikely a token is.
    """
    end = int(batch.offsets[1])
    window = slice(max(end - PROBE_TOKENS, 0), end)
    trained = batch.trained[window].copy()
    trained[0] = False
    token_ids = batch.token_ids[window]
    zeros = np.zeros(len(token_ids), np.float32)
    return TrainBatch.of([Sequence(token_ids, trained, zeros, np.where(trained, 0, NO_VERSION), zeros, zeros)])
