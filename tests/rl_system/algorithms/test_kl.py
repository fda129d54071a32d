import numpy as np
import pytest
import torch

from rl_system.algorithms.kl import estimate_kl, with_reference
from rl_system.config.algorithm import AlgorithmConfig
from tests.rl_system.algorithms.episodes import random_batch


def test_estimators_agree_with_the_exact_divergence_and_its_gradient_where_they_are_unbiased():
    """Expectations over all tokens of a small vocabulary, not samples: exact."""
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=6), requires_grad=True)
    reference = torch.log_softmax(torch.tensor(rng.normal(size=6)), 0)
    logp = torch.log_softmax(logits, 0)
    p = logp.detach().exp()
    exact = (logp.exp() * (logp - reference)).sum()
    (by_exact,) = torch.autograd.grad(exact, logits, retain_graph=True)
    expected = {name: (p * estimate_kl(logp - reference, name)).sum() for name in ("k1", "k2", "k3")}
    assert expected["k1"].item() == pytest.approx(exact.item(), rel=1e-12)
    assert expected["k3"].item() == pytest.approx(exact.item(), rel=1e-12)
    gradients = {name: torch.autograd.grad(e, logits, retain_graph=True)[0].numpy() for name, e in expected.items()}
    np.testing.assert_allclose(gradients["k2"], by_exact.numpy(), atol=1e-12)
    np.testing.assert_allclose(gradients["k1"], 0, atol=1e-12)  # why k1 is refused in the loss


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_divergence_in_the_reward_lowers_the_advantage_of_a_token_by_its_own_and_all_later_ones(estimator):
    rng = np.random.default_rng(1)
    batch = random_batch(rng, [6, 0, 9, 1])
    batch.weights[8:12] = 0
    reference = np.where(batch.trained, -rng.random(16), 0).astype(np.float32)
    config = AlgorithmConfig(kl_coefficient=0.2, kl_estimator=estimator, kl_in="reward")
    got = with_reference(batch, reference, config)
    np.testing.assert_array_equal(got.reference_logprobs, reference)
    expected = batch.advantages.astype(np.float64)
    for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        for t in range(begin, end):
            for later in range(t, end):
                if batch.trained[t] and batch.trained[later] and batch.weights[later]:
                    delta = float(batch.behaviour_logprobs[later] - reference[later])
                    kl = {"k1": delta, "k2": delta**2 / 2, "k3": np.exp(-delta) - 1 + delta}[estimator]
                    expected[t] -= 0.2 * kl
    np.testing.assert_allclose(got.advantages, expected, atol=1e-6)


def test_a_divergence_in_the_loss_leaves_the_advantages_alone():
    batch = random_batch(np.random.default_rng(2), [6, 9])
    got = with_reference(batch, np.zeros(15), AlgorithmConfig(kl_coefficient=0.2))
    np.testing.assert_array_equal(got.advantages, batch.advantages)


def test_untrained_tokens_of_the_reference_cannot_leak():
    batch = random_batch(np.random.default_rng(3), [6, 9])
    reference = np.where(batch.trained, -0.5, np.nan)
    got = with_reference(batch, reference, AlgorithmConfig(kl_coefficient=0.2, kl_in="reward"))
    assert np.isfinite(got.advantages).all()
    assert (got.advantages[~batch.trained] == 0).all()
