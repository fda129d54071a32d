"""From finished groups to the batch of a step, and what can be said about it before it is trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_system.records import NO_VERSION, Sequence, TrainBatch


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """staleness: of a token, the version that is trained on it minus the version that sampled it."""

    sequences: int
    sequence_tokens: int
    trained_tokens: int
    staleness_mean: float
    staleness_max: int
    mixed_sequences: int
    """Sequences whose tokens were sampled by more than one version."""


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


def summarise(batch: TrainBatch, version: int) -> BatchSummary:
    sampled = batch.versions[batch.trained & (batch.versions != NO_VERSION)]
    staleness = version - sampled.astype(np.int64)
    mixed = 0
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        versions = batch.versions[start:end]
        versions = versions[versions != NO_VERSION]
        mixed += len(versions) > 0 and versions.min() != versions.max()
    return BatchSummary(
        sequences=len(batch),
        sequence_tokens=batch.sequence_tokens,
        trained_tokens=int(batch.trained.sum()),
        staleness_mean=float(staleness.mean()) if len(staleness) else 0.0,
        staleness_max=int(staleness.max()) if len(staleness) else 0,
        mixed_sequences=int(mixed),
    )
