"""The dispatcher: holds finished groups and turns those of a step into one balanced part of the tree for each trainer.

Wiring only. Loss weights are fixed over the whole batch before it is cut, so that the cut cannot change the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import ray

from rl_system.algorithms import prepare_batch, set_loss_weights
from rl_system.algorithms.batching import join_groups, minibatches
from rl_system.config.run import RunConfig
from rl_system.executor import CostModel
from rl_system.records import Sequence, TrainBatch
from rl_system.tracking.measures import cut_metrics, staleness_metrics
from rl_system.tree import partition, quality


@dataclass(slots=True)
class DispatchedBatch:
    """parts[rank][minibatch]: references to `TrainBatch`es, possibly empty ones. whole: reference to the batch uncut."""

    group_ids: list[int]
    parts: list[list[ray.ObjectRef]]
    whole: ray.ObjectRef
    metrics: dict[str, float]


@ray.remote(num_cpus=0)
class Dispatcher:
    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.groups: dict[int, list[Sequence]] = {}

    def add_group(self, group_id: int, sequences: list[Sequence]) -> None:
        self.groups[group_id] = sequences

    def build(self, group_ids: list[int], trainers: int, version: int, cost_model: CostModel) -> DispatchedBatch:
        """Cut the batch of `group_ids` for `trainers` ranks. version: the policy that will be trained on it."""
        algorithm = self.config.algorithm
        # By id, because the order in which groups were started may be another after a resume.
        whole = prepare_batch(join_groups({i: self.groups.pop(i) for i in sorted(group_ids)}), algorithm, version)
        steps = minibatches(whole, algorithm.updates_per_batch)
        if len(steps) > 1:
            # Each minibatch is an optimizer step of its own, so its weights add up as those of a whole batch do.
            steps = [set_loss_weights(step, algorithm.aggregation, algorithm.constant_length) for step in steps]
        cuts = [partition(step, trainers, cost_model) for step in steps]
        made = compared = quality(steps, cuts, cost_model)
        if trainers == 1:  # what it would lose to a second is worth knowing before there is one
            compared = quality(steps, [partition(step, 2, cost_model) for step in steps], cost_model)
        return DispatchedBatch(
            group_ids=group_ids,
            parts=[[_put(step, cut[rank]) for step, cut in zip(steps, cuts, strict=True)] for rank in range(trainers)],
            whole=ray.put(whole),
            metrics=staleness_metrics(whole, version) | cut_metrics(made, compared),
        )

    def waiting_groups(self) -> dict[int, list[Sequence]]:
        """Finished groups that no step has taken yet, for a checkpoint."""
        return dict(self.groups)

    def restore(self, groups: dict[int, list[Sequence]]) -> None:
        self.groups = dict(groups)


def _put(step: TrainBatch, indices: np.ndarray) -> ray.ObjectRef:
    return ray.put(step.take(indices))
