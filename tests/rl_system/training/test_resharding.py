"""Learners that change the number of their ranks: nothing of the training state is lost or changed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.training import flat_parameters
from rl_system.training.flat_parameters import Layout
from rl_system.training.learner import Learner
from rl_system.training.ranks import Ranks, connect_store, host_store
from rl_system.training.resharding import (
    Shard,
    counters_of,
    cut_states,
    parameters_of,
    set_counters,
    take_parameters,
    take_states,
)
from tests.rl_system.training.conftest import make_batch, make_model
from tests.rl_system.training.processes import LOOPBACK, TIMEOUT_S, run_ranks

SIZES = (1, 2, 3, 1)
"""Ranks of the group, one update each."""


def make_learner(ranks: Ranks, dtype: torch.dtype, seed: int = 0) -> Learner:
    return Learner(
        make_model(dtype, seed=seed),
        algorithm=AlgorithmConfig(),
        executor=ExecutorConfig(method="tree"),
        # Norms are summed share by share: without clipping their last bits change nothing.
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2, max_grad_norm=1e9, weight_decay=0.1),
        updates=len(SIZES),
        ranks=ranks,
    )


def update(learner: Learner, step: int) -> None:
    """All of the batch on one rank, another one at every step: adding the others' zeros rounds nothing."""
    batch = make_batch(seed=step)
    mine = learner.ranks.rank == step % learner.ranks.size
    learner.update(batch if mine else batch.take(np.arange(0)))


def everything_of(learner: Learner) -> dict[str, torch.Tensor]:
    """Parameters and states without padding, of a learner that is alone."""
    elements = learner.flat.layout.elements
    states = {name: values[:elements].clone() for name, values in learner.optimizer.states().items()}
    return {"parameters": learner.flat.values[:elements].clone()} | states


class Mail:
    """What the object store is to a run: values by name, for every process."""

    def __init__(self, ranks: Ranks) -> None:
        store = host_store(LOOPBACK, ranks.size, TIMEOUT_S) if ranks.rank == 0 else None
        port = ranks.gather_objects(store.port if store else None)[0]
        self.store = store or connect_store(LOOPBACK, port, ranks.size, TIMEOUT_S)

    def send(self, name: str, value: object) -> None:
        self.store.set(name, pickle.dumps(value))

    def receive(self, name: str):
        return pickle.loads(self.store.get(name))


def join(mail: Mail, name: str, rank: int, size: int) -> tuple[Ranks, dist.TCPStore | None]:
    store = None
    if size > 1 and rank == 0:
        store = host_store(LOOPBACK, size, TIMEOUT_S)
        mail.send(f"{name}/port", store.port)
    elif size > 1:
        store = connect_store(LOOPBACK, mail.receive(f"{name}/port"), size, TIMEOUT_S)
    return Ranks.join(rank, size, store, TIMEOUT_S), store


def train_in_changing_groups(ranks: Ranks, dtype: torch.dtype):
    """One update in a group of each of SIZES; what the learner that is left at the end holds."""
    mail, me = Mail(ranks), ranks.rank
    ranks.barrier()
    ranks.close()
    learner, result = None, None
    for stage, size in enumerate(SIZES):
        before = SIZES[stage - 1] if stage else 0
        if me < before:
            for rank, shards in enumerate(cut_states(learner, size)):
                mail.send(f"{stage}/{me}/{rank}", shards)
            if me == 0:
                mail.send(f"{stage}/head", (parameters_of(learner), counters_of(learner)))
            learner.ranks.close()
        if me >= size:
            learner = None
            continue
        own, _store = join(mail, str(stage), me, size)
        if learner is None:
            learner = make_learner(own, dtype, seed=0 if stage == 0 else 99)
        else:
            learner.regroup(own)
        if stage:
            parameters, counters = mail.receive(f"{stage}/head")
            if me >= before:
                take_parameters(learner, parameters)
            take_states(learner, [mail.receive(f"{stage}/{rank}/{me}") for rank in range(before)])
            set_counters(learner, counters)
        update(learner, stage)
    if me == 0:
        result = everything_of(learner), counters_of(learner)
    join(mail, "end", me, ranks.size)  # for the barrier of `run_ranks`
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_in_groups_of_1_2_3_and_1_equals_training_alone_bit_for_bit(dtype):
    alone = make_learner(Ranks(), dtype)
    for step in range(len(SIZES)):
        update(alone, step)
    (found, counters), *_ = run_ranks(max(SIZES), train_in_changing_groups, dtype)
    assert found.keys() == everything_of(alone).keys()
    for name, values in everything_of(alone).items():
        assert torch.equal(found[name], values), name
    assert counters == counters_of(alone)
    assert not torch.equal(found["parameters"], everything_of(make_learner(Ranks(), dtype))["parameters"])


class Pretended(Ranks):
    """Rank `rank` of `size` that never sends anything."""


def with_numbered_states(learner: Learner) -> Learner:
    """States whose value is their place in the flat vector, from which a wrong copy is seen."""
    for number, states in enumerate(learner.optimizer.states().values(), 1):
        places = [torch.arange(share.start, share.stop) for share in learner.optimizer.shares]
        states.copy_(torch.cat(places) * number)
    return learner


@pytest.mark.parametrize("bucket_elements", [1000, 1 << 25])
@pytest.mark.parametrize("before, after", [(1, 2), (2, 3), (3, 2), (2, 1), (4, 1), (3, 5)])
def test_every_state_lands_at_its_place_of_the_vector_whatever_the_sizes(before, after, bucket_elements, monkeypatch):
    monkeypatch.setattr(flat_parameters, "BUCKET_ELEMENTS", bucket_elements)
    old = [with_numbered_states(make_learner(Pretended(rank, before), torch.float32)) for rank in range(before)]
    left = [cut_states(learner, after) for learner in old]
    elements = old[0].flat.layout.elements
    for rank in range(after):
        learner = make_learner(Pretended(rank, after), torch.float32)
        take_states(learner, [shards[rank] for shards in left])
        for number, states in enumerate(learner.optimizer.states().values(), 1):
            places = torch.cat([torch.arange(share.start, share.stop) for share in learner.optimizer.shares])
            real = places < elements
            assert torch.equal(states[real], (places * number)[real].float())


def test_the_shards_for_another_group_also_restore_the_one_that_they_came_from():
    old = [with_numbered_states(make_learner(Pretended(rank, 2), torch.float32)) for rank in range(2)]
    every = [shards for learner in old for shards in cut_states(learner, 3)]
    for learner in old:
        before = {name: states.clone() for name, states in learner.optimizer.states().items()}
        learner.regroup(Pretended(learner.ranks.rank, 3))
        learner.regroup(Pretended(learner.ranks.rank, 2))
        take_states(learner, every)
        elements = learner.flat.layout.elements
        real = torch.cat([torch.arange(share.start, share.stop) for share in learner.optimizer.shares]) < elements
        for name, states in learner.optimizer.states().items():
            assert torch.equal(states[real], before[name][real])


def test_what_was_cut_does_not_change_with_later_updates():
    learner = make_learner(Ranks(), torch.float32)
    update(learner, 0)
    [shards] = cut_states(learner, 1)
    before = {name: values.copy() for name, values in shards["policy"].states.items()}
    update(learner, 1)
    for name, values in shards["policy"].states.items():
        assert np.array_equal(values, before[name])


def test_the_executor_goes_on_with_what_it_has_learnt():
    learner = make_learner(Ranks(), torch.float32)
    update(learner, 0)
    cost_model = learner.executor.cost_model
    learner.regroup(Pretended(0, 2))
    assert learner.executor.cost_model is cost_model


def test_parameters_of_another_model_are_refused_before_anything_is_changed():
    learner = make_learner(Ranks(), torch.float32)
    before = learner.flat.values.clone()
    with pytest.raises(ValueError, match="parameters were handed over to a policy of"):
        take_parameters(learner, {"policy": [np.zeros(7, np.float32)]})
    assert torch.equal(learner.flat.values, before)


@given(st.integers(1, 5000), st.integers(1, 7), st.integers(1, 7))
@settings(max_examples=50)
def test_the_shares_of_any_two_layouts_cover_the_parameters_once(elements, before, after):
    counted = np.zeros(elements + flat_parameters.ALIGNMENT * 49, np.int64)
    for giver in range(before):
        for taker in range(after):
            for own in Layout(elements, before).shares(giver):
                for wanted in Layout(elements, after).shares(taker):
                    counted[max(own.start, wanted.start) : max(min(own.stop, wanted.stop), 0)] += 1
    assert (counted[:elements] == 1).all()


def test_a_shard_of_nothing_is_legal():
    learner = make_learner(Ranks(), torch.float32)
    nothing = {name: np.empty(0, np.float32) for name in learner.optimizer.states()}
    take_states(learner, [{"policy": Shard([], nothing)}])
    assert not learner.optimizer.first_moment.any()
