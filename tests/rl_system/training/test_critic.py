"""The critic beside the policy: what it gives and what it learns, against plain torch in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_system.algorithms.gae import generalised_advantages
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.errors import UserError
from rl_system.executor.precision import full_precision
from rl_system.records import TrainBatch
from rl_system.tracking.names import unlisted
from rl_system.training.checkpoint import load_checkpoint, save_checkpoint
from rl_system.training.checkpoint_directory import open_checkpoint
from rl_system.training.critic import Critic
from rl_system.training.learner import Learner
from rl_system.training.ranks import Ranks
from tests.rl_system.training.conftest import make_batch, make_model, make_tokenizer
from tests.rl_system.training.processes import run_ranks

RATE, CRITIC_RATE = 1e-3, 1e-2
GAE = {"advantage": "gae", "critic": {"learning_rate": CRITIC_RATE, "gae_lambda": 0.9, "discount": 0.99}}


def make_learner(
    ranks: Ranks | None = None, *, dtype=torch.float64, seed: int = 0, tied: bool = True, **algorithm
) -> Learner:
    return Learner(
        make_model(dtype, seed=seed, tied=tied),
        algorithm=AlgorithmConfig(**(GAE | algorithm)),
        executor=ExecutorConfig(method="tree", block_tokens=16),
        optimizer=OptimizerConfig(learning_rate=RATE, max_grad_norm=1e9),
        updates=6,
        ranks=ranks,
        critic=make_model(dtype, seed=seed, tied=tied),
    )


def returns_batch(seed: int) -> TrainBatch:
    """Every token carries what its sequence earned."""
    batch = make_batch(seed=seed)
    earned = np.random.default_rng(seed + 50).normal(size=len(batch)).astype(np.float32)
    return replace(batch, advantages=np.where(batch.trained, np.repeat(earned, batch.lengths()), 0))


def sequences(batch: TrainBatch) -> list[slice]:
    return [slice(start, stop) for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]


def oracle_values(backbone: torch.nn.Module, head: torch.nn.Module, batch: TrainBatch) -> torch.Tensor:
    """[sequence_tokens]: the head on the hidden state before each token, one sequence at a time."""
    result = []
    for rows in sequences(batch):
        ids = torch.from_numpy(batch.token_ids[rows]).long()
        with full_precision(backbone.dtype):
            hidden = backbone.base_model(ids[None], use_cache=False).last_hidden_state[0]
        result += [hidden.new_zeros(1), head(hidden[:-1]).squeeze(1)]
    return torch.cat(result)


def oracle_assessment(batch: TrainBatch, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normalised advantages and targets [sequence_tokens], from the definition."""
    advantages, targets = np.zeros(batch.sequence_tokens), np.zeros(batch.sequence_tokens)
    for rows in sequences(batch):
        at = rows.start + np.flatnonzero(batch.trained[rows])
        rewards = np.zeros(len(at))
        rewards[-1] = batch.advantages[at[-1]]
        advantages[at], targets[at] = generalised_advantages(rewards, values[at], 0.99, 0.9)
    live = advantages[batch.trained]
    return np.where(batch.trained, (advantages - live.mean()) / live.std(), 0), targets


def test_critic_and_policy_learn_as_two_plain_models_with_adamw_do():
    learner = make_learner(objective="reinforce", correction="none")
    policy, backbone, head = make_model(), make_model(), torch.nn.Linear(32, 1).double()
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    settings = {"betas": (0.9, 0.95), "weight_decay": 0.0, "foreach": False}
    policy_adam = torch.optim.AdamW(policy.parameters(), lr=RATE, **settings)
    critic_adam = torch.optim.AdamW([*backbone.model.parameters(), *head.parameters()], lr=CRITIC_RATE, **settings)
    for step in range(3):
        batch = returns_batch(step)
        weights = torch.from_numpy(batch.weights)
        with torch.no_grad():
            old = oracle_values(backbone, head, batch)
        advantages, targets = (torch.from_numpy(each) for each in oracle_assessment(batch, old.numpy()))
        loss = 0.0
        for rows in sequences(batch):
            ids = torch.from_numpy(batch.token_ids[rows]).long()
            with full_precision(policy.dtype):
                logprobs = policy(ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
            taken = logprobs.gather(1, ids[1:, None]).squeeze(1)
            loss = loss - (taken * advantages[rows][1:] * weights[rows][1:]).sum()
        values = oracle_values(backbone, head, batch)
        held = old + (values - old).clamp(-0.2, 0.2)
        each = torch.maximum((values - targets) ** 2, (held - targets) ** 2) / 2
        for adam, objective in ((policy_adam, loss), (critic_adam, (each * weights).sum())):
            adam.zero_grad()
            objective.backward()
            adam.step()
        metrics = learner.update(batch)
        assert metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-5)  # advantages travel in float32
        assert metrics["train/value_loss"] == pytest.approx(each[batch.trained].mean().item(), rel=1e-5)
        variance = targets[batch.trained].var(correction=0)
        unexplained = (targets - old)[batch.trained].var(correction=0)
        assert metrics["train/value_explained_variance"] == pytest.approx((1 - unexplained / variance).item(), rel=1e-4)
    found = dict(learner.critic.model.named_parameters())
    expected = {f"backbone.model.{name}": each for name, each in backbone.model.named_parameters()}
    expected |= {f"head.{name}": each for name, each in head.named_parameters()}
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        torch.testing.assert_close(found[name], parameter, rtol=0, atol=2e-5, msg=name)
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(learner.model.get_parameter(name), parameter, rtol=0, atol=2e-6, msg=name)


def test_values_through_the_tree_are_those_of_each_sequence_alone():
    learner, batch = make_learner(), returns_batch(0)
    learner.update(batch)
    model = learner.critic.model
    expected = oracle_values(model.backbone, model.head, batch).detach().numpy() * batch.trained
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(learner.critic.values(batch), expected, rtol=1e-9, atol=1e-12)


def test_all_minibatches_of_a_step_are_assessed_by_the_critic_from_before_it():
    learner = make_learner()
    learner.update(returns_batch(0))
    parts = [returns_batch(1).take(np.arange(3)), returns_batch(1).take(np.arange(3, 6))]
    (whole,) = learner.critic.assess([returns_batch(1)])
    assessed = learner.critic.assess(parts)
    for name in ("values", "advantages", "returns"):
        got = np.concatenate([getattr(each, name) for each in assessed])
        np.testing.assert_allclose(got, getattr(whole, name), rtol=1e-5, atol=1e-6)
    learner.critic.update(assessed)
    assert learner.critic.optimizer.updates == 3


def test_a_critic_that_sees_the_same_returns_again_comes_to_explain_them():
    learner = make_learner(dtype=torch.float32, critic={"learning_rate": 3e-2, "value_clip": None})
    batch = returns_batch(3)
    metrics = [learner.update(batch) for _ in range(25)]
    assert metrics[0]["train/value_mean"] == 0
    assert metrics[-1]["train/value_explained_variance"] > 0.5
    assert metrics[-1]["train/value_loss"] < 0.5 * metrics[0]["train/value_loss"]
    assert all(unlisted(each) == [] and np.isfinite(list(each.values())).all() for each in metrics)


def test_a_divergence_in_the_reward_is_charged_before_the_critic_judges():
    batch = returns_batch(0)
    options = {"kl_coefficient": 0.5, "kl_in": "reward", "kl_estimator": "k1", "normalise_batch": False}
    config = AlgorithmConfig(**(GAE | options))
    learner = Learner(
        make_model(), algorithm=config, executor=ExecutorConfig(method="tree"), optimizer=OptimizerConfig(),
        updates=1, reference=make_model(), critic=make_model(),
    )  # fmt: skip
    reference = learner.reference.logprobs(batch)
    metrics = learner.update(batch)
    paid = []
    for rows in sequences(batch):
        at = rows.start + np.flatnonzero(batch.trained[rows])
        rewards = -0.5 * (batch.behaviour_logprobs[at] - reference[at])
        rewards[-1] += batch.advantages[at[-1]]
        paid += generalised_advantages(rewards, np.zeros(len(at)), 0.99, 0.9)[1].tolist()
    assert metrics["train/return_mean"] == pytest.approx(np.mean(paid), rel=1e-4)


def test_bfloat16_critics_learn_with_gradients_added_up_in_float32():
    learner = make_learner(dtype=torch.bfloat16, critic={"learning_rate": 3e-2, "value_clip": None})
    batch = returns_batch(3)
    losses = [learner.update(batch)["train/value_loss"] for _ in range(15)]
    assert learner.critic.flat.gradients.dtype == torch.float32
    assert learner.critic.values(batch).dtype == np.float32
    assert losses[-1] < 0.7 * losses[0]


def test_a_critic_that_diverges_stops_the_run_and_its_learning_rate_is_named():
    learner = make_learner(normalise_batch=False, objective="ppo_clip")
    batch = returns_batch(0)
    with torch.no_grad():
        learner.critic.model.head.bias.fill_(float("nan"))
    learner.critic.update(learner.critic.assess([batch]))
    learner.critic.update(learner.critic.assess([batch]))
    with pytest.raises(UserError, match=r"3 updates in a row.*algorithm\.critic\.learning_rate than 0\.01"):
        learner.critic.update(learner.critic.assess([batch]))


def test_a_model_for_the_critic_is_asked_for_where_the_estimator_needs_one():
    with pytest.raises(ValueError, match="algorithm.advantage is 'gae'"):
        Learner(
            make_model(), algorithm=AlgorithmConfig(advantage="gae"), executor=ExecutorConfig(),
            optimizer=OptimizerConfig(), updates=1,
        )  # fmt: skip


# -- several ranks, and checkpoints --------------------------------------------------------------------------------


def update(learner: Learner, steps: range) -> dict[str, float]:
    for step in steps:
        batch = returns_batch(step)
        cuts = {1: [6], 2: [4, 6], 3: [1, 6, 6]}[learner.ranks.size]  # unequal; the last of three ranks has nothing
        start = cuts[learner.ranks.rank - 1] if learner.ranks.rank else 0
        metrics = learner.update(batch.take(np.arange(start, cuts[learner.ranks.rank])))
    return metrics


def values_of(trained: Learner | Critic) -> np.ndarray:
    return trained.flat.values[: trained.flat.slots[-1].stop].double().numpy().copy()


def train(ranks: Ranks) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    learner = make_learner(ranks)
    metrics = update(learner, range(3))
    return values_of(learner), values_of(learner.critic), metrics


def test_several_ranks_train_the_critic_and_the_policy_that_one_does():
    alone = train(Ranks())
    for size in (2, 3):
        for policy, critic, metrics in run_ranks(size, train):
            np.testing.assert_allclose(policy, alone[0], rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(critic, alone[1], rtol=1e-6, atol=1e-8)
            for name in ("value_loss", "value_clip_fraction", "value_explained_variance", "return_mean", "loss"):
                assert metrics[f"train/{name}"] == pytest.approx(alone[2][f"train/{name}"], rel=1e-6), name


def save(learner: Learner, directory: Path) -> Path:
    return save_checkpoint(
        learner, make_tokenizer(), directory, run="run", step=3, started_from="model", state={}, blobs={}, keep=1
    )


def train_and_save(ranks: Ranks, directory: Path) -> None:
    learner = make_learner(ranks)
    update(learner, range(3))
    save(learner, directory)


def resume_and_train(ranks: Ranks, path: Path) -> tuple[np.ndarray, np.ndarray]:
    learner = make_learner(ranks, seed=99)
    load_checkpoint(learner, open_checkpoint(path))
    update(learner, range(3, 5))
    return values_of(learner), values_of(learner.critic)


def test_one_rank_goes_on_with_the_critic_bit_for_bit(tmp_path):
    whole = make_learner()
    update(whole, range(5))
    train_and_save(Ranks(), tmp_path)
    policy, critic = resume_and_train(Ranks(), tmp_path / "step_3")
    np.testing.assert_array_equal(policy, values_of(whole))
    np.testing.assert_array_equal(critic, values_of(whole.critic))


def test_a_critic_of_two_ranks_goes_on_in_one_and_in_three(tmp_path):
    whole = make_learner()
    update(whole, range(5))
    run_ranks(2, train_and_save, tmp_path)
    path = tmp_path / "step_3"
    for policy, critic in [resume_and_train(Ranks(), path), *run_ranks(3, resume_and_train, path)]:
        np.testing.assert_allclose(policy, values_of(whole), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(critic, values_of(whole.critic), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("tied", [True, False])
def test_the_critic_of_a_model_with_a_head_of_its_own_trains_all_but_that_head(tied, tmp_path):
    learner = make_learner(tied=tied)
    trained = {slot.name for slot in learner.critic.flat.slots}
    assert "head.weight" in trained and "backbone.lm_head.weight" not in trained
    update(learner, range(1))
    path = save(learner, tmp_path)
    again = make_learner(seed=9, tied=tied)
    load_checkpoint(again, open_checkpoint(path))
    np.testing.assert_array_equal(values_of(again.critic), values_of(learner.critic))


@pytest.mark.parametrize(("saved", "configured"), [("gae", "grpo"), ("grpo", "gae")])
def test_a_checkpoint_with_a_critic_and_one_without_are_not_taken_for_each_other(saved, configured, tmp_path):
    def learner(advantage: str) -> Learner:
        return Learner(
            make_model(), algorithm=AlgorithmConfig(advantage=advantage), executor=ExecutorConfig(),
            optimizer=OptimizerConfig(), updates=1, critic=make_model() if advantage == "gae" else None,
        )  # fmt: skip

    path = save(learner(saved), tmp_path)
    with pytest.raises(UserError, match=r"critic.*algorithm\.advantage"):
        load_checkpoint(learner(configured), open_checkpoint(path))


def test_a_batch_in_which_nothing_counts_moves_neither_policy_nor_critic():
    learner = make_learner()
    learner.update(returns_batch(0))
    before = [learner.flat.values.clone(), learner.critic.flat.values.clone()]
    batch = returns_batch(1)
    metrics = learner.update(replace(batch, weights=np.zeros_like(batch.weights)))
    assert torch.equal(learner.flat.values, before[0]) and torch.equal(learner.critic.flat.values, before[1])
    assert metrics["train/empty_updates"] == metrics["train/critic_empty_updates"] == 1
    assert unlisted(metrics) == []
