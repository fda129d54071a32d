import time

import numpy as np
from hypothesis import given, settings

from rl_system.records import TrainBatch
from rl_system.tree import build_tree
from tests.rl_system.trees import EDGE, batch_of, nested, random_batches


def prefixes(batch: TrainBatch) -> list[tuple[int, ...]]:
    """The prefix that ends at each token of the batch: what a row of the tree stands for."""
    result = []
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = batch.token_ids[start:stop].tolist()
        result += [tuple(ids[: length + 1]) for length in range(len(ids))]
    return result


def check_tree(batch: TrainBatch) -> None:
    tree = build_tree(batch)
    prefix_of_row: dict[int, tuple[int, ...]] = {}
    for row, prefix in zip(tree.rows.tolist(), prefixes(batch), strict=True):
        assert prefix_of_row.setdefault(row, prefix) == prefix
    assert len(prefix_of_row) == len(set(prefixes(batch))) == len(tree)
    ends = tree.row_end()
    for row, prefix in prefix_of_row.items():
        assert tree.token_ids[row] == prefix[-1]
        assert tree.depth[row] == len(prefix) - 1
        assert tree.parent[row] == (-1 if len(prefix) == 1 else tree.rows[prefixes(batch).index(prefix[:-1])])
        below = {other for other, longer in prefix_of_row.items() if longer[: len(prefix)] == prefix}
        assert below == set(range(row, ends[row]))
    children = np.bincount(tree.parent[tree.parent >= 0], minlength=len(tree))
    for start, stop in zip(tree.start, tree.stop, strict=True):
        assert (children[start : stop - 1] == 1).all(), "a fork inside a node"
        assert children[stop - 1] != 1, "a node that could be longer"


def test_each_distinct_prefix_is_one_row_and_descendants_are_contiguous():
    check_tree(batch_of(EDGE))


@settings(max_examples=150, deadline=None)
@given(random_batches())
def test_random_trees_equal_the_set_of_their_prefixes(batch):
    check_tree(batch)


def test_sequences_without_anything_in_common_share_no_row():
    batch = batch_of([[1, 2, 3], [4, 5], [6]])
    assert len(build_tree(batch)) == batch.sequence_tokens


def test_an_empty_batch_has_an_empty_tree():
    assert len(build_tree(TrainBatch.of([]))) == 0


def test_forks_nested_a_thousand_deep_build_without_recursion_in_under_a_second():
    batch = nested(1100)
    began = time.process_time()
    tree = build_tree(batch)
    assert time.process_time() - began < 1
    assert len(tree) == 2 * 1099


def test_five_million_tokens_build_in_under_two_seconds():
    random = np.random.default_rng(0)
    length, shared = 16_000, 4_800
    ids = random.integers(0, 150_000, (350, length)).astype(np.int32)
    ids[:, :shared] = ids[0, :shared]
    for index in range(1, len(ids)):
        if index % 10:
            cut = random.integers(shared, length)
            ids[index, :cut] = ids[index - 1, :cut]
    flat = ids.reshape(-1)
    zeros = np.zeros(len(flat))
    batch = TrainBatch(np.arange(351) * length, flat, zeros > 1, zeros, zeros, zeros, zeros, np.arange(350))
    began = time.process_time()
    tree = build_tree(batch)
    assert time.process_time() - began < 2
    assert len(tree) < batch.sequence_tokens / 2
