import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.tree import CostModel, ModelShape, build_tree, partition, quality
from rl_system.tree.partition import SequenceCosts
from rl_system.tree.prefix_tree import neighbour_prefixes, sorted_sequences
from tests.rl_system.trees import batch_of, multi_turn, random_batches


@pytest.fixture
def cost_model() -> CostModel:
    return CostModel(ModelShape(layer_parameters=10_000, layers=2, attention_width=32, hidden=32, vocabulary=50))


def costs(batch, cost_model) -> SequenceCosts:
    order = sorted_sequences(batch)
    return SequenceCosts(batch, order, neighbour_prefixes(batch, order), cost_model)


@settings(max_examples=100, deadline=None)
@given(random_batches(), st.integers(1, 12))
def test_parts_are_contiguous_and_hold_every_sequence_once(batch, parts):
    model = CostModel(ModelShape(10_000, 2, 32, 32, 50))
    cut = partition(batch, parts, model)
    assert len(cut) == parts
    np.testing.assert_array_equal(np.concatenate(cut), sorted_sequences(batch))


@settings(max_examples=60, deadline=None)
@given(random_batches(most_sequences=6), st.integers(1, 4))
def test_the_largest_cost_is_the_smallest_that_contiguous_parts_allow(batch, parts):
    model = CostModel(ModelShape(10_000, 2, 32, 32, 50))
    whole = costs(batch, model)
    count = len(batch)

    def best(first: int, left: int) -> float:
        if left == 1:
            return whole.of(first, count)
        return min(max(whole.of(first, last), best(last, left - 1)) for last in range(first, count + 1))

    made = max(costs(batch.take(part), model).of(0, len(part)) for part in partition(batch, parts, model))
    assert made <= best(0, parts) * 1.03


def test_the_predicted_cost_of_a_run_of_sequences_is_that_of_the_batch_it_makes(cost_model):
    batch = multi_turn(3, 4)
    whole, order = costs(batch, cost_model), sorted_sequences(batch)
    for first, last in ((0, 12), (3, 9), (5, 6)):
        alone = costs(batch.take(order[first:last]), cost_model)
        assert whole.of(first, last) == pytest.approx(alone.of(0, last - first), rel=1e-12)


def test_more_parts_than_sequences_leave_some_empty(cost_model):
    parts = partition(batch_of([[1, 2, 3], [4, 5, 6]]), 5, cost_model)
    assert sorted(map(len, parts)) == [0, 0, 0, 1, 1]


def test_one_sequence_larger_than_everything_else_gets_a_part_of_its_own(cost_model):
    parts = partition(batch_of([[1] * 500, [2, 3], [2, 4], [5, 6]]), 2, cost_model)
    assert [0] in [part.tolist() for part in parts]


def test_rollouts_of_a_task_stay_together(cost_model):
    batch = batch_of([[task] * 60 + [rollout] * 20 for task in range(4) for rollout in range(6)])
    parts = partition(batch, 4, cost_model)
    kept = len(build_tree(batch)) / sum(len(build_tree(batch.take(part))) for part in parts)
    assert kept > 0.93


@settings(max_examples=60, deadline=None)
@given(st.lists(random_batches(), min_size=1, max_size=2), st.integers(1, 6))
def test_the_quality_of_a_cut_is_that_of_the_trees_that_its_parts_make(batches, parts):
    model = CostModel(ModelShape(10_000, 2, 32, 32, 50))
    cuts = [partition(batch, parts, model) for batch in batches]
    made = quality(batches, cuts, model)
    taken = [[batch.take(part) for part in cut] for batch, cut in zip(batches, cuts, strict=True)]
    unique = sum(len(build_tree(batch)) for batch in batches)
    assert made.sequence_tokens == sum(batch.sequence_tokens for batch in batches)
    assert made.unique_tokens == unique
    assert made.kept == pytest.approx(unique / sum(len(build_tree(part)) for cut in taken for part in cut))
    each = [[costs(part, model).of(0, len(part)) for part in cut] for cut in taken]
    largest, together = sum(map(max, each)), sum(map(sum, each))
    assert made.imbalance == pytest.approx(largest * parts / together)
    whole = sum(costs(batch, model).of(0, len(batch)) for batch in batches)
    if parts > 1:
        assert largest == pytest.approx(whole * (made.repeated + (1 - made.repeated) / parts), rel=1e-6)


def test_what_every_part_repeats_is_the_prompt_that_all_sequences_share(cost_model):
    """Sixteen answers as long as their prompt, one token in seventeen each: cut in four, a part has the prompt and four."""
    batch = batch_of([[1] * 40 + [2 + rollout] * 40 for rollout in range(16)])
    made = quality([batch], [partition(batch, 4, cost_model)], cost_model)
    assert (made.unique_tokens, made.sequence_tokens) == (17 * 40, 16 * 80)
    assert made.kept == pytest.approx(17 / 20) and made.imbalance == pytest.approx(1)
    assert 0.02 < made.repeated < 0.06  # one seventeenth of the tokens, which attend to less than the others
    dense = batch_of([[rollout] * 40 for rollout in range(16)])
    made = quality([dense], [partition(dense, 4, cost_model)], cost_model)
    assert (made.kept, made.repeated) == (1.0, pytest.approx(0.0, abs=1e-9))
