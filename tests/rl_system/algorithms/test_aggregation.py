from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.algorithms import prepare_batch, set_loss_weights
from rl_system.algorithms.aggregation import normalise_advantages
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.records import TrainBatch
from tests.rl_system.algorithms.episodes import random_batch

AGGREGATIONS = ["token_mean", "sequence_mean", "constant"]


def reference_weights(batch: TrainBatch, aggregation: str, constant: int) -> list[float]:
    """Loops over sequences and tokens, one at a time."""
    live = [
        [t for t in range(a, b) if batch.trained[t] and batch.weights[t] != 0]
        for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    ]
    sequences = sum(1 for each in live if each)
    total = sum(len(each) for each in live)
    weights = [0.0] * batch.sequence_tokens
    for each in live:
        for t in each:
            weights[t] = {
                "token_mean": 1 / total,
                "sequence_mean": 1 / sequences / len(each),
                "constant": 1 / sequences / constant,
            }[aggregation]
    return weights


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=8), st.sampled_from(AGGREGATIONS), st.integers(0, 2**32 - 1))
def test_weights_agree_with_a_plain_reference_also_with_empty_and_masked_sequences(lengths, aggregation, seed):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, lengths)
    batch.weights *= rng.random(batch.sequence_tokens) < 0.8
    got = set_loss_weights(batch, aggregation, 17)
    np.testing.assert_allclose(got.weights, reference_weights(batch, aggregation, 17), rtol=1e-12)
    again = set_loss_weights(got, aggregation, 17)
    np.testing.assert_array_equal(again.weights, got.weights)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_partition_and_the_number_of_ranks_cannot_change_the_loss(aggregation):
    rng = np.random.default_rng(1)
    batch = set_loss_weights(random_batch(rng, [5, 9, 3, 12, 7, 0, 4]), aggregation, 10)
    losses = rng.normal(size=batch.sequence_tokens)
    whole = float((batch.weights * losses).sum())
    at = batch.offsets
    for cuts in ([], [1], [3, 5], [0, 2, 2, 6], range(1, 7)):
        total = 0.0
        for part in np.split(np.arange(len(batch)), list(cuts)):
            own = np.concatenate([losses[at[i] : at[i + 1]] for i in part] or [np.empty(0)])
            total += float((batch.take(part).weights * own).sum())
        assert total == pytest.approx(whole, rel=1e-12)


def test_weights_follow_their_sequences_into_any_order():
    batch = random_batch(np.random.default_rng(2), [5, 9, 3, 12])
    order = np.array([2, 0, 3, 1])
    for aggregation in AGGREGATIONS:
        np.testing.assert_array_equal(
            set_loss_weights(batch.take(order), aggregation, 8).weights,
            set_loss_weights(batch, aggregation, 8).take(order).weights,
        )


def test_a_batch_in_which_everything_is_masked_has_weights_of_zero_and_no_nan():
    batch = random_batch(np.random.default_rng(3), [4, 4])
    masked = replace(batch, weights=np.zeros(8))
    for aggregation in AGGREGATIONS:
        assert prepare_batch(masked, AlgorithmConfig(aggregation=aggregation, constant_length=4)).weights.sum() == 0


def test_the_constant_aggregation_without_a_length_is_refused():
    batch = random_batch(np.random.default_rng(3), [4])
    with pytest.raises(ValueError, match="constant_length"):
        set_loss_weights(batch, "constant")
    with pytest.raises(ValueError, match="algorithm.constant_length"):
        AlgorithmConfig(aggregation="constant")


def test_normalised_advantages_have_mean_zero_and_deviation_one_over_unmasked_tokens_only():
    batch = random_batch(np.random.default_rng(4), [20, 30, 10])
    batch.weights[20:50] = 0
    batch.advantages[20:50] = np.nan
    (got,) = normalise_advantages([batch])
    live = batch.trained & (batch.weights != 0)
    assert got.advantages[live].mean() == pytest.approx(0, abs=1e-6)
    assert got.advantages[live].std() == pytest.approx(1, abs=1e-6)


def test_normalising_parts_together_is_normalising_the_whole_whatever_the_parts():
    batch = random_batch(np.random.default_rng(7), [20, 30, 10, 5])
    (whole,) = normalise_advantages([batch])
    parts = normalise_advantages([batch.take(np.array(part, np.int64)) for part in ([2], [], [0, 3], [1])])
    got = np.concatenate([part.advantages for part in parts])
    np.testing.assert_allclose(got, whole.take(np.array([2, 0, 3, 1])).advantages, rtol=1e-6)
    assert normalise_advantages([]) == []


def test_equal_advantages_become_zero_under_batch_normalisation():
    batch = random_batch(np.random.default_rng(5), [20, 30])
    batch.advantages[:] = 0.7
    (got,) = normalise_advantages([batch])
    assert np.abs(got.advantages[batch.trained]).max() < 1e-6


@pytest.mark.parametrize(
    ("config", "normalised"),
    [
        (AlgorithmConfig(advantage="reinforce_pp"), True),
        (AlgorithmConfig(advantage="reinforce_pp", normalise_batch=False), False),
        (AlgorithmConfig(advantage="grpo"), False),
        (AlgorithmConfig(advantage="grpo", normalise_batch=True), True),
    ],
)
def test_the_batch_is_normalised_where_the_paper_or_the_configuration_says_so(config, normalised):
    batch = random_batch(np.random.default_rng(6), [20, 30])
    got = prepare_batch(batch, config)
    assert np.array_equal(got.advantages, batch.advantages) != normalised
    assert got.weights.sum() == pytest.approx(1)
