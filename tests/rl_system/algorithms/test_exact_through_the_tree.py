"""The tree computes one logprob for a token that many sequences share; the loss must still be that of each sequence."""

import numpy as np
import pytest
import torch

from rl_system.algorithms import make_objective, prepare_batch, set_loss_weights
from rl_system.algorithms.gae import with_gae
from rl_system.algorithms.statistics import Statistics
from rl_system.algorithms.value_objective import ValueObjective
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.executor import make_executor
from rl_system.records import Sequence, TrainBatch
from tests.rl_system.algorithms.models import tiny_model
from tests.rl_system.algorithms.test_objectives import OBJECTIVES, VARIANTS, VERSION

VOCABULARY = 23


def shared_batch(seed: int) -> TrainBatch:
    """Sequences that share trained tokens, with other advantages, behaviour logprobs, masks and versions on each:
    forks, a prefix of another sequence, and one sequence twice.
    """
    rng = np.random.default_rng(seed)
    trunk = rng.integers(0, VOCABULARY, 12)
    tails = [rng.integers(0, VOCABULARY, rng.integers(1, 9)) for _ in range(6)]
    texts = [np.concatenate([trunk[: rng.integers(6, 13)], tail]) for tail in tails]
    texts += [texts[0], texts[1][:9]]
    sequences = []
    for token_ids in texts:
        n = len(token_ids)
        trained = (np.arange(n) >= 4) & (rng.random(n) < 0.8)
        sequences.append(
            Sequence(
                token_ids=token_ids.astype(np.int32),
                trained=trained,
                behaviour_logprobs=np.where(trained, np.log(1 / VOCABULARY) + rng.normal(size=n) * 0.3, 0),
                versions=np.where(trained, rng.integers(0, VERSION + 1, n), -1),
                advantages=np.where(trained, rng.normal(size=n), 0),
                weights=trained.astype(np.float64),
            )
        )
    sequences[2].weights[:] = 0  # masked, but still in the tree
    batch = TrainBatch.of(sequences)
    reference = np.log(1 / VOCABULARY) + rng.normal(size=batch.sequence_tokens) * 0.2
    batch.reference_logprobs = np.where(batch.trained, reference, 0)
    return batch


def run(model, batch: TrainBatch, config: AlgorithmConfig, executor: ExecutorConfig):
    """Loss, gradients by name, metrics."""
    model.zero_grad(set_to_none=True)
    result = make_executor(model, executor).step(batch, make_objective(config, VERSION))
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return result.loss, gradients, result.statistics.values()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_every_objective_is_that_of_independent_sequences_whatever_the_blocks(variant, aggregation):
    config = AlgorithmConfig(**VARIANTS[variant], aggregation=aggregation)
    model = tiny_model(VOCABULARY)
    batch = prepare_batch(shared_batch(1), config, VERSION)
    loss, gradients, metrics = run(model, batch, config, ExecutorConfig(method="dense"))
    assert max(gradient.abs().max() for gradient in gradients.values()) > 1e-6
    for block_tokens in (0, 8):
        tree = run(model, batch, config, ExecutorConfig(method="tree", block_tokens=block_tokens))
        assert tree[0] == pytest.approx(loss, rel=1e-9)
        for name, gradient in gradients.items():
            error = (tree[1][name] - gradient).norm() / gradient.norm()
            assert error < 1e-9, name
        assert tree[2] == pytest.approx(metrics, rel=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_neither_the_partition_nor_the_number_of_ranks_changes_loss_gradients_or_metrics(variant):
    config = AlgorithmConfig(**VARIANTS[variant])
    model = tiny_model(VOCABULARY)
    batch = prepare_batch(shared_batch(2), config, VERSION)
    executor = ExecutorConfig(method="tree", block_tokens=16)
    loss, gradients, metrics = run(model, batch, config, executor)
    for parts in ([[0, 1, 2, 3], [4, 5, 6, 7]], [[7], [2], [], [0, 6, 1], [5, 4, 3]]):
        model.zero_grad(set_to_none=True)
        results = [
            make_executor(model, executor).step(batch.take(np.array(part, np.int64)), make_objective(config, VERSION))
            for part in parts
        ]
        assert sum(result.loss for result in results) == pytest.approx(loss, rel=1e-9)
        for name, parameter in model.named_parameters():
            assert (parameter.grad - gradients[name]).norm() / gradients[name].norm() < 1e-9, name
        merged = Statistics()
        for result in results:
            merged.merge(result.statistics)
        assert merged.values() == pytest.approx(metrics, rel=1e-9)


def test_the_critics_loss_is_that_of_independent_sequences():
    model, head = tiny_model(VOCABULARY), torch.nn.Linear(32, 1).double()
    batch = set_loss_weights(shared_batch(4), "token_mean")
    rng = np.random.default_rng(5)
    batch.values = rng.normal(size=batch.sequence_tokens)
    batch = with_gae(batch)

    def critic(executor: ExecutorConfig):
        for module in (model, head):
            module.zero_grad(set_to_none=True)
        result = make_executor(model, executor, head=head).step(batch, ValueObjective(clip=0.2))
        parameters = [*model.model.named_parameters(), *head.named_parameters()]
        return result.loss, {name: parameter.grad.clone() for name, parameter in parameters}, result.statistics.values()

    loss, gradients, metrics = critic(ExecutorConfig(method="dense"))
    for block_tokens in (0, 8):
        tree = critic(ExecutorConfig(method="tree", block_tokens=block_tokens))
        assert tree[0] == pytest.approx(loss, rel=1e-9)
        for name, gradient in gradients.items():
            assert (tree[1][name] - gradient).norm() / gradient.norm() < 1e-9, name
        assert tree[2] == pytest.approx(metrics, rel=1e-9)


def test_the_order_of_sequences_does_not_matter():
    config = AlgorithmConfig(objective="gspo", aggregation="sequence_mean", normalise_batch=True)
    model = tiny_model(VOCABULARY)
    batch = shared_batch(6)
    executor = ExecutorConfig(method="tree", block_tokens=8)
    loss, gradients, metrics = run(model, prepare_batch(batch, config), config, executor)
    shuffled = batch.take(np.random.default_rng(7).permutation(len(batch)))
    other = run(model, prepare_batch(shuffled, config), config, executor)
    assert other[0] == pytest.approx(loss, rel=1e-6)  # normalised advantages are float32
    for name, gradient in gradients.items():
        assert (other[1][name] - gradient).norm() / gradient.norm() < 1e-6, name
    assert other[2] == pytest.approx(metrics, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_padding_of_untrained_tokens_at_the_end_changes_nothing(objective):
    config = AlgorithmConfig(objective=objective, aggregation="sequence_mean")
    model = tiny_model(VOCABULARY)
    batch = shared_batch(3)
    padded = []
    for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        fields = {
            name: np.concatenate([getattr(batch, name)[begin:end], np.full(5, fill)])
            for name, fill in (("token_ids", 3), ("trained", False), ("behaviour_logprobs", 0), ("versions", -1),
                               ("advantages", 0), ("weights", 0))
        }  # fmt: skip
        padded.append(Sequence(**fields))
    executor = ExecutorConfig(method="dense")
    plain = run(model, prepare_batch(batch, config), config, executor)
    longer = run(model, prepare_batch(TrainBatch.of(padded), config), config, executor)
    assert longer[0] == pytest.approx(plain[0], rel=1e-12)
    for name, gradient in plain[1].items():
        assert torch.allclose(longer[1][name], gradient, rtol=1e-10, atol=1e-14)
    assert longer[2] == pytest.approx(plain[2], rel=1e-12)
