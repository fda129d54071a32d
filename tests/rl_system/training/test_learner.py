from dataclasses import replace

import numpy as np
import pytest
import torch

from rl_system.algorithms import prepare_batch
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.errors import UserError
from rl_system.executor.precision import full_precision
from rl_system.records import TrainBatch
from rl_system.tracking.names import unlisted
from rl_system.training.learner import Learner
from tests.rl_system.training.conftest import make_batch, make_model


def make_learner(
    model=None, *, method: str = "tree", algorithm: dict | None = None, optimizer: dict | None = None, reference=None,
    temperature: float = 1.0,
) -> Learner:
    return Learner(
        model or make_model(),
        algorithm=AlgorithmConfig(**(algorithm or {})),
        executor=ExecutorConfig(method=method),
        optimizer=OptimizerConfig(**({"learning_rate": 1e-2} | (optimizer or {}))),
        updates=10,
        reference=reference,
        temperature=temperature,
    )


def oracle_logprobs(model: torch.nn.Module, batch: TrainBatch) -> torch.Tensor:
    """Logprob of every token [sequence_tokens], one sequence at a time."""
    result = []
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.token_ids[start:stop]).long()
        with full_precision(model.dtype):
            logits = model(ids[None], use_cache=False).logits[0, :-1]
        picked = torch.log_softmax(logits, -1).gather(1, ids[1:, None]).squeeze(1)
        result.append(torch.cat([picked.new_zeros(1), picked]))
    return torch.cat(result)


def test_supervised_updates_equal_adamw_on_the_sum_of_weighted_logprobs(batch):
    learner = make_learner(algorithm={"objective": "sft"}, optimizer={"max_grad_norm": 1e9})
    oracle = make_model()
    adam = torch.optim.AdamW(oracle.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0, foreach=False)
    for _ in range(3):
        loss = -(oracle_logprobs(oracle, batch) * torch.from_numpy(batch.weights)).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
        metrics = learner.update(batch)
        assert metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-9)
    for (name, parameter), expected in zip(learner.model.named_parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-7, atol=1e-9, msg=name)


def test_logprobs_before_the_step_are_kept_for_each_minibatch(batch):
    learner = make_learner()
    before = learner.logprobs(batch)
    learner.update([batch, batch])
    first, second = learner.last_logprobs
    np.testing.assert_allclose(first, before, rtol=1e-9)
    assert np.abs(second - first).max() > 1e-3


def test_proximal_logprobs_are_those_before_the_first_of_several_updates(batch):
    """With the proximal policy fixed, the second update on the same batch sees ratios that have moved away from 1."""
    once = make_learner(algorithm={"updates_per_batch": 1}).update([batch, batch])
    fixed = make_learner(algorithm={"updates_per_batch": 2}).update([batch, batch])
    assert once["train/ratio_max"] == pytest.approx(1.0)
    assert fixed["train/ratio_max"] > 1.01


def test_the_version_rises_by_one_an_update_whatever_the_number_of_minibatches(batch):
    learner = make_learner()
    learner.update([batch, batch, batch])
    assert learner.version == 1 and learner.optimizer.updates == 3


def test_an_empty_part_is_a_step_of_zeros():
    learner = make_learner()
    before = learner.flat.values.clone()
    metrics = learner.update(make_batch().take(np.empty(0, np.int64)))
    assert metrics["train/grad_norm"] == 0 and metrics["train/loss"] == 0
    assert torch.equal(learner.flat.values, before)


def test_a_bad_batch_is_skipped_and_counted_and_the_run_goes_on(batch):
    learner = make_learner(optimizer={"max_bad_steps": 2})
    before = learner.flat.values.clone()
    metrics = learner.update(spoiled(batch))
    assert torch.equal(learner.flat.values, before)
    assert metrics["train/bad_steps"] == 1 and metrics["train/updates"] == 0
    assert learner.update(batch)["train/updates"] == 1
    assert learner.update(spoiled(batch))["train/bad_steps"] == 2


def test_too_many_bad_steps_in_a_row_stop_the_run_with_a_clear_error(batch):
    learner = make_learner(optimizer={"max_bad_steps": 2})
    learner.update(spoiled(batch))
    with pytest.raises(UserError, match=r"2 updates in a row.*optimizer\.max_bad_steps.*optimizer\.learning_rate"):
        learner.update(spoiled(batch))


def spoiled(batch: TrainBatch) -> TrainBatch:
    """`batch` with one advantage that is not a number."""
    result = batch.take(np.arange(len(batch)))
    result.advantages[np.flatnonzero(result.trained)[3]] = np.nan
    return result


def test_the_reference_policy_stays_where_the_run_started(batch):
    learner = make_learner(algorithm={"kl_coefficient": 0.1}, reference=make_model())
    first, second = learner.update(batch), learner.update(batch)
    assert first["train/reference_kl"] == pytest.approx(0, abs=1e-12)
    assert second["train/reference_kl"] > 1e-4
    expected = oracle_logprobs(make_model(), batch).detach().numpy() * batch.trained
    np.testing.assert_allclose(learner.reference.logprobs(batch), expected, rtol=1e-9)


def test_the_step_is_normalised_after_a_divergence_was_charged_to_the_reward(batch):
    settings = {"advantage": "reinforce_pp", "kl_coefficient": 0.3, "kl_in": "reward", "kl_estimator": "k1"}
    prepared = prepare_batch(batch, AlgorithmConfig(**settings))
    np.testing.assert_array_equal(prepared.advantages, batch.advantages)
    delta = batch.behaviour_logprobs - oracle_logprobs(make_model(), batch).detach().numpy()
    charged = []
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        sampled = start + np.flatnonzero(batch.trained[start:stop])
        charged += (batch.advantages[sampled] - 0.3 * delta[sampled][::-1].cumsum()[::-1]).tolist()
    expected = np.abs(np.array(charged) - np.mean(charged)).mean() / np.std(charged)
    for parts in ([prepared], [prepared.take(np.arange(2)), prepared.take(np.arange(2, 6))]):
        metrics = make_learner(algorithm=settings, reference=make_model()).update(parts)
        assert metrics["train/advantage_mean"] == pytest.approx(0, abs=1e-6)
        assert metrics["train/advantage_size"] == pytest.approx(expected, rel=1e-5)


def test_a_reference_is_asked_for_where_the_objective_needs_one():
    with pytest.raises(ValueError, match="needs a reference model"):
        make_learner(algorithm={"kl_coefficient": 0.1})


def test_every_metric_is_listed_and_finite(batch):
    metrics = make_learner().update(batch)
    assert unlisted(metrics) == []
    assert all(np.isfinite(value) for value in metrics.values())


def test_bfloat16_models_learn_with_gradients_added_up_in_float32(batch):
    learner = make_learner(make_model(torch.bfloat16), algorithm={"objective": "sft"})
    oracle = make_model(torch.float32)
    loss = -(oracle_logprobs(oracle, batch) * torch.from_numpy(batch.weights)).sum()
    loss.backward()
    result = learner.executor.step(batch, learner.make_objective())
    assert result.loss == pytest.approx(loss.item(), rel=0.02)
    name, expected = "model.layers.0.mlp.down_proj.weight", oracle.model.layers[0].mlp.down_proj.weight.grad
    found = learner.flat.gradient_of[name]
    assert found.dtype == torch.float32
    assert (found - expected).norm() < 0.05 * expected.norm()
    learner.flat.gradients.zero_()
    losses = [learner.update(batch)["train/loss"] for _ in range(5)]
    assert losses[-1] < losses[0]


def masked(batch: TrainBatch) -> TrainBatch:
    """`batch` with weight 0 on every token, as a mask of all that is stale leaves it."""
    return replace(batch, weights=np.zeros_like(batch.weights))


def without_advantage(batch: TrainBatch) -> TrainBatch:
    return replace(batch, advantages=np.zeros_like(batch.advantages))


@pytest.mark.parametrize("nothing_to_learn", [masked, without_advantage])
def test_a_batch_without_a_gradient_moves_nothing_and_is_a_version_all_the_same(batch, nothing_to_learn):
    learner = make_learner(optimizer={"weight_decay": 0.1, "warmup_steps": 5})
    first = learner.update(batch)
    before = learner.flat.values.clone()
    metrics = learner.update([nothing_to_learn(batch), nothing_to_learn(batch)])
    assert torch.equal(learner.flat.values, before)
    assert (metrics["train/updates"], metrics["train/empty_updates"], metrics["train/bad_steps"]) == (0, 2, 0)
    assert learner.version == 2 and learner.optimizer.updates == 1
    assert learner.update(batch)["train/learning_rate"] == 2 * first["train/learning_rate"], "the schedule went on"


def test_an_empty_batch_neither_adds_to_bad_steps_in_a_row_nor_ends_them(batch):
    learner = make_learner(optimizer={"max_bad_steps": 2})
    learner.update(spoiled(batch))
    learner.update(masked(batch))
    with pytest.raises(UserError, match="2 updates in a row"):
        learner.update(spoiled(batch))


def test_an_update_that_breaks_parameters_ends_the_run_at_once(batch):
    learner = make_learner(make_model(torch.float32), optimizer={"learning_rate": 3e38})
    with pytest.raises(UserError, match=r"left parameters that are not finite.*optimizer\.learning_rate"):
        learner.update(batch)


def test_a_temperature_of_ones_own_can_be_asked_for(batch):
    learner = make_learner(temperature=0.7)
    at_one = oracle_logprobs(make_model(), batch).detach().numpy() * batch.trained
    np.testing.assert_allclose(learner.logprobs(batch, 1.0), at_one, rtol=1e-9)
    assert np.abs(learner.logprobs(batch) - at_one).max() > 0.1
    np.testing.assert_array_equal(learner.logprobs(batch, 0.7), learner.logprobs(batch))
