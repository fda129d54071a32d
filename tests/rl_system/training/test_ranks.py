"""Several ranks are one learner that is faster: same loss, same gradients, same parameters."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
import torch

from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.errors import UserError
from rl_system.training.learner import Learner
from rl_system.training.ranks import Ranks, host_store, interface_towards
from tests.rl_system.training.conftest import make_batch, make_model
from tests.rl_system.training.processes import LOOPBACK, run_ranks

STEPS = 5


@dataclass
class Trained:
    """losses, norms: of each step. gradient: of the whole batch under the first parameters. parameters: after the last
    step."""

    losses: list[float]
    norms: list[float]
    gradient: np.ndarray
    parameters: np.ndarray
    metrics: dict[str, float]


def make_learner(ranks: Ranks, dtype: torch.dtype = torch.float64, objective: str = "decoupled_ppo") -> Learner:
    return Learner(
        make_model(dtype),
        algorithm=AlgorithmConfig(objective=objective),
        executor=ExecutorConfig(method="tree"),
        optimizer=OptimizerConfig(learning_rate=1e-2, max_grad_norm=0.1, weight_decay=0.1, warmup_steps=2),
        updates=STEPS,
        ranks=ranks,
    )


def part_of(ranks: Ranks, step: int, sequences: int = 6):
    """This rank's part of the step's batch: unequal, and empty for the last rank where there are more than two."""
    cuts = {1: [6], 2: [4, 6], 3: [1, 6, 6], 4: [3, 4, 6, 6]}[ranks.size]
    cuts = [min(cut, sequences) for cut in cuts]
    start = 0 if ranks.rank == 0 else cuts[ranks.rank - 1]
    return make_batch(sequences, seed=step).take(np.arange(start, cuts[ranks.rank]))


def values_of(learner: Learner) -> np.ndarray:
    """The parameters, without the padding that depends on the number of ranks."""
    values = learner.flat.values[: learner.flat.slots[-1].stop]
    return values.to(torch.float64).numpy().copy()


def train(ranks: Ranks, dtype: torch.dtype = torch.float64, objective: str = "decoupled_ppo") -> Trained:
    learner = make_learner(ranks, dtype, objective)
    learner.executor.step(part_of(ranks, 0), learner.make_objective())
    whole = learner.flat.gradients.clone()
    if ranks.size > 1:
        torch.distributed.all_reduce(whole)
    learner.flat.gradients.zero_()
    metrics = [learner.update(part_of(ranks, step)) for step in range(STEPS)]
    return Trained(
        losses=[each["train/loss"] for each in metrics],
        norms=[each["train/grad_norm"] for each in metrics],
        gradient=whole[: learner.flat.slots[-1].stop].numpy(),
        parameters=values_of(learner),
        metrics=metrics[-1],
    )


@pytest.fixture(scope="module")
def alone() -> Trained:
    return train(Ranks())


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_same_batch_gives_the_same_loss_gradients_and_parameters_on_any_number_of_ranks(size, alone):
    results = run_ranks(size, train)
    for found in results:
        np.testing.assert_allclose(found.losses, alone.losses, rtol=1e-9)
        np.testing.assert_allclose(found.norms, alone.norms, rtol=1e-9)
        scale = np.linalg.norm(alone.gradient)
        assert np.linalg.norm(found.gradient - alone.gradient) <= 1e-9 * scale
        np.testing.assert_allclose(found.parameters, alone.parameters, rtol=1e-7, atol=1e-9)
        assert np.array_equal(found.parameters, results[0].parameters)
    names = ("sequences", "trained_tokens", "ratio_mean", "approx_kl", "clip_fraction")
    for name in (*(f"train/{name}" for name in names), "tree/sequence_tokens", "off_policy/behaviour_kl"):
        assert results[-1].metrics[name] == pytest.approx(alone.metrics[name], rel=1e-9)


def test_bfloat16_parameters_are_the_same_on_every_rank():
    first, second = run_ranks(2, train, torch.bfloat16)
    assert np.array_equal(first.parameters, second.parameters)
    assert not np.array_equal(first.parameters, values_of(make_learner(Ranks(), torch.bfloat16)))


def spoil_one_rank(ranks: Ranks) -> tuple[list[float], bool, str]:
    """Two updates in which rank 1 alone gets a bad batch; updates applied, whether parameters moved, the error."""
    learner = make_learner(ranks)
    before = values_of(learner)
    applied, error = [], ""
    try:
        for step in range(3):
            part = part_of(ranks, step)
            if ranks.rank == 1:
                part.advantages[:] = np.nan
            applied.append(learner.update(part)["train/updates"])
    except UserError as caught:
        error = str(caught)
    return applied, not np.array_equal(values_of(learner), before), error


def test_a_bad_batch_on_one_rank_is_skipped_by_all_and_stops_all():
    results = run_ranks(2, spoil_one_rank)
    assert results[0] == results[1]
    applied, moved, error = results[0]
    assert applied == [0.0, 0.0] and not moved
    assert "3 updates in a row" in error


def listening_addresses(ranks: Ranks) -> set[str]:
    ranks.barrier()
    return {each.laddr.ip for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}


def test_ranks_that_meet_on_loopback_listen_nowhere_else():
    for addresses in run_ranks(2, listening_addresses):
        assert addresses and addresses <= {LOOPBACK}


def test_the_store_listens_on_its_own_address_alone():
    store = host_store(LOOPBACK, 2, 5.0)
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", store.port), timeout=5):
        pass
    with socket.create_connection((LOOPBACK, store.port), timeout=5):
        pass


def test_the_interface_towards_loopback_is_the_loopback():
    assert interface_towards(LOOPBACK) in {name for name in psutil.net_if_addrs() if name.startswith("lo")}
