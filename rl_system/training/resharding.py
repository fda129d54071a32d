"""A learner's state on its way to another number of ranks, without a disk.

Every rank of the old group cuts its share of the optimizer states into one shard for each rank of the new one; a rank
takes the shards that are meant for it. Parameters are the same on every rank, so they come from the first one, and only
a rank that was not in the old group needs them.

Invariant: the shards that all old ranks hand over hold every element of the flat vector exactly once, whatever the
number of new ranks. So any group can be formed from them, the old one again too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

from rl_system.training.flat_parameters import Layout, copy_overlaps, overlaps
from rl_system.training.learner import Learner
from rl_system.training.trained import Trained
from rl_system.training.weights import as_numpy

POLICY, CRITIC = "policy", "critic"


@dataclass(slots=True)
class Shard:
    """`stretches` of a flat vector, (start, stop) in elements, and by name the states there, concatenated."""

    stretches: list[tuple[int, int]]
    states: dict[str, np.ndarray]


@dataclass(slots=True)
class Handover:
    """What one rank leaves for the new group. Heavy values may be references to them, in an object store.

    shards: for each rank of the new group a `Shard` by model (`policy`, `critic`). parameters: from the first rank, by
    model, the flat vector in pieces; else None. counters: what `set_counters` takes.
    """

    shards: list[Any]
    parameters: Any
    counters: dict[str, Any]
    started_from: str = ""
    """Directory of the model that the run began with."""


def trained_models(learner: Learner) -> dict[str, Trained]:
    """What the optimizers of a learner train, by name."""
    return {POLICY: learner} if learner.critic is None else {POLICY: learner, CRITIC: learner.critic}


def cut_states(learner: Learner, size: int) -> list[dict[str, Shard]]:
    """This rank's optimizer states, cut for each rank of a group of `size`. Copies, which later updates do not change."""
    models = trained_models(learner)
    return [{name: _cut(trained, size, rank) for name, trained in models.items()} for rank in range(size)]


def take_states(learner: Learner, handed_over: Iterable[dict[str, Shard]]) -> None:
    """Fill this rank's optimizer states with what the shards hold of them."""
    models = trained_models(learner)
    for shards in handed_over:
        for name, shard in shards.items():
            optimizer = models[name].optimizer
            for state, own in optimizer.states().items():
                arrived, offset = _as_tensor(shard.states[state]), 0
                for start, stop in shard.stretches:
                    copy_overlaps(arrived, offset, slice(start, stop), own, optimizer.shares)
                    offset += stop - start


def parameters_of(learner: Learner) -> dict[str, list[np.ndarray]]:
    """By model the flat vector without its padding, bucket by bucket. On the CPU these are views."""
    return {name: _pieces(trained) for name, trained in trained_models(learner).items()}


def take_parameters(learner: Learner, parameters: dict[str, list[np.ndarray]]) -> None:
    """Overwrite the parameters. ValueError where they are those of another model."""
    for name, trained in trained_models(learner).items():
        flat, offset = trained.flat, 0
        elements = sum(map(len, parameters[name]))
        if elements != flat.layout.elements:
            raise ValueError(f"{elements} parameters were handed over to a {name} of {flat.layout.elements}")
        for piece in parameters[name]:
            flat.values[offset : offset + len(piece)].copy_(_as_tensor(piece))
            offset += len(piece)


def counters_of(learner: Learner) -> dict[str, Any]:
    """What is counted alike on every rank: policy version, and by model the updates applied and skipped."""
    updates = {name: trained.optimizer.updates for name, trained in trained_models(learner).items()}
    bad_steps = {name: trained.bad_steps.state() for name, trained in trained_models(learner).items()}
    return {"version": learner.version, "updates": updates, "bad_steps": bad_steps}


def set_counters(learner: Learner, counters: dict[str, Any]) -> None:
    learner.version = counters["version"]
    for name, trained in trained_models(learner).items():
        trained.optimizer.set_updates(counters["updates"][name])
        trained.bad_steps.restore(counters["bad_steps"][name])


def _cut(trained: Trained, size: int, rank: int) -> Shard:
    """What rank `rank` of `size` gets of this rank's states."""
    wanted = Layout(trained.flat.layout.elements, size).shares(rank)
    common = [each for stretch in wanted for each in overlaps(stretch, trained.optimizer.shares)]
    stretches = [(where.start, where.stop) for where, _ in common]
    places = [own for _, own in common]
    states = {
        name: as_numpy(torch.cat([values[:0], *(values[each] for each in places)]))
        for name, values in trained.optimizer.states().items()
    }
    return Shard(stretches, states)


def _pieces(trained: Trained) -> list[np.ndarray]:
    elements = trained.flat.layout.elements
    pieces = [trained.flat.values[bucket.start : min(bucket.stop, elements)] for bucket in trained.flat.buckets]
    return [as_numpy(piece) for piece in pieces if len(piece)]


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    """A copy of the same dtype: arrays out of an object store cannot be written to, and torch wants to be able to."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.tensor(array.view(np.uint16)).view(torch.bfloat16)
    return torch.tensor(array)
