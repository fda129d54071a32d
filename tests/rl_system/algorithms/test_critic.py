from dataclasses import replace

import numpy as np
import pytest
import torch

from rl_system.algorithms import prepare_batch
from rl_system.algorithms.aggregation import normalises_batch
from rl_system.algorithms.gae import generalised_advantages, with_gae
from rl_system.algorithms.objective import Pairs
from rl_system.algorithms.value_objective import ValueObjective
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.records import TrainBatch
from tests.rl_system.algorithms.episodes import random_batch


def test_generalised_advantages_by_hand():
    advantages, returns = generalised_advantages(np.array([0.0, 1.0]), np.array([0.5, 0.25]), 0.5, 0.5)
    # δ = (0 + ½·¼ − ½, 1 − ¼) = (−0.375, 0.75); A = (−0.375 + ¼·0.75, 0.75)
    np.testing.assert_allclose(advantages, [-0.1875, 0.75], rtol=1e-12)
    np.testing.assert_allclose(returns, [0.3125, 1.0], rtol=1e-12)


def test_generalised_advantages_are_the_weighted_mean_of_all_k_step_estimates():
    """Equation 16 of the paper as it stands: `(1 − λ) Σ_k λ^(k−1) A^(k)`, with the rest of the weight on the full
    return.
    """
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=7), rng.normal(size=7)
    discount, decay = 0.9, 0.8
    ahead = np.append(values, 0.0)
    got, _ = generalised_advantages(rewards, values, discount, decay)
    for t in range(7):
        left = 7 - t
        steps = [
            sum(discount**j * rewards[t + j] for j in range(k)) + discount**k * ahead[t + k] - values[t]
            for k in range(1, left + 1)
        ]
        mixed = sum((1 - decay) * decay ** (k - 1) * steps[k - 1] for k in range(1, left))
        assert got[t] == pytest.approx(mixed + decay ** (left - 1) * steps[-1], rel=1e-12)


def valued_batch(seed: int, lengths: list[int], rewards: list[float]) -> TrainBatch:
    """A batch whose every token has the return `rewards` of its sequence, as `score_group` leaves it, and a value."""
    batch = random_batch(np.random.default_rng(seed), lengths)
    batch.advantages[:] = np.where(batch.trained, np.repeat(rewards, lengths), 0)
    batch.values = np.random.default_rng(seed + 1).normal(size=sum(lengths)).astype(np.float32)
    return batch


def test_without_decay_the_target_is_the_reward_and_the_advantage_its_surprise():
    batch = valued_batch(1, [8, 3, 12, 0], [1.0, -2.0, 0.5, 3.0])
    got = with_gae(batch, discount=1.0, decay=1.0)
    np.testing.assert_allclose(got.returns[batch.trained], batch.advantages[batch.trained], atol=1e-6)
    surprise = (batch.advantages - batch.values)[batch.trained]
    np.testing.assert_allclose(got.advantages[batch.trained], surprise, atol=1e-6)
    assert (got.advantages[~batch.trained] == 0).all() and (got.returns[~batch.trained] == 0).all()


def test_what_the_environment_wrote_in_between_changes_no_advantage():
    batch = valued_batch(3, [10], [1.0])
    got = with_gae(batch)
    rows = np.flatnonzero(batch.trained)
    alone, _ = generalised_advantages(np.eye(len(rows))[-1], batch.values[rows], 1.0, 0.95)
    np.testing.assert_allclose(got.advantages[rows], alone, rtol=1e-6)
    batch.values[~batch.trained] = np.nan
    np.testing.assert_array_equal(with_gae(batch).advantages, got.advantages)


def test_what_is_earned_on_the_way_is_a_reward_of_the_token_that_earned_it():
    """Credit spread over turns and charges by token leave returns that fall along the sequence."""
    batch = valued_batch(5, [12], [0.0])
    rows = np.flatnonzero(batch.trained)
    rewards = np.random.default_rng(7).normal(size=len(rows))
    batch.advantages[rows] = rewards[::-1].cumsum()[::-1]
    expected, targets = generalised_advantages(rewards, batch.values[rows], 0.9, 0.8)
    got = with_gae(batch, discount=0.9, decay=0.8)
    np.testing.assert_allclose(got.advantages[rows], expected, atol=1e-5)
    np.testing.assert_allclose(got.returns[rows], targets, atol=1e-5)


def test_values_are_required():
    batch = random_batch(np.random.default_rng(5), [4])
    with pytest.raises(ValueError, match="values"):
        with_gae(batch)


def test_returns_are_not_normalised_before_the_critic_has_judged_them():
    batch = valued_batch(8, [9, 7], [1.0, 0.0])
    got = prepare_batch(batch, AlgorithmConfig(advantage="gae"))
    np.testing.assert_array_equal(got.advantages, batch.advantages)
    assert normalises_batch(AlgorithmConfig(advantage="gae"))


def test_the_value_loss_by_hand():
    # held at 0.2 from the old value 0: the target is missed by 0.8 where the value itself would miss it by 0.5 only
    loss, statistics = ValueObjective(clip=0.2)(
        torch.tensor([0.5, 0.1], dtype=torch.float64), None, pairs_of([0.0, 0.0], [1.0, 1.0], [0.5, 0.5])
    )
    assert loss.item() == pytest.approx(0.25 * (0.8**2 + 0.9**2), rel=1e-12)
    assert statistics.values() == pytest.approx(
        {"train/value_loss": 0.5 * (0.8**2 + 0.9**2) / 2, "train/value_clip_fraction": 0.5}
    )


def pairs_of(values, returns, weights) -> Pairs:
    n = len(values)
    zeros = torch.zeros(n, dtype=torch.float64)
    return Pairs(
        torch.zeros(n, dtype=torch.int64), zeros, zeros, torch.tensor(weights), torch.zeros(n, dtype=torch.int64),
        values=torch.tensor(values), returns=torch.tensor(returns),
    )  # fmt: skip


def test_the_clipped_value_loss_agrees_with_a_plain_reference_and_hides_masked_nan():
    rng = np.random.default_rng(6)
    old, returns, new, weights = rng.normal(size=(4, 20))
    old[3] = returns[3] = new[3] = np.nan
    weights[3] = 0

    def one(i: int, value: float) -> float:
        held = old[i] + min(max(value - old[i], -0.2), 0.2)
        return weights[i] * max((value - returns[i]) ** 2, (held - returns[i]) ** 2) / 2

    outputs = torch.tensor(new, requires_grad=True)
    loss, statistics = ValueObjective(clip=0.2)(outputs, None, pairs_of(old, returns, weights))
    loss.backward()
    live = [i for i in range(20) if i != 3]
    assert loss.item() == pytest.approx(sum(one(i, new[i]) for i in live), rel=1e-12)
    numeric = [(one(i, new[i] + 1e-6) - one(i, new[i] - 1e-6)) / 2e-6 for i in live]
    np.testing.assert_allclose(outputs.grad.numpy()[live], numeric, rtol=1e-6, atol=1e-9)
    assert outputs.grad[3] == 0
    assert 0 < statistics.values()["train/value_clip_fraction"] < 1


def test_the_critic_learns_the_return():
    outputs = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([outputs], 0.5)
    objective = ValueObjective(clip=None)
    for _ in range(60):
        pairs = pairs_of(outputs.detach().tolist(), [1.0, -1.0, 2.0], [1.0, 1.0, 1.0])
        optimizer.zero_grad()
        objective(outputs, None, pairs)[0].backward()
        optimizer.step()
    np.testing.assert_allclose(outputs.detach(), [1, -1, 2], atol=1e-6)
    with pytest.raises(ValueError, match="returns"):
        objective(outputs, None, replace(pairs, returns=None))
