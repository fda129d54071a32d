import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.executor.workload import needed_nodes, trained_rows
from rl_system.records import TrainBatch
from rl_system.tree import PrefixTree, build_tree
from rl_system.tree.block_plan import BlockPlan, plan_blocks
from tests.rl_system.trees import EDGE, batch_of, multi_turn, nested, random_batches


def plan(batch: TrainBatch, block_tokens: int, retain_tokens: int = 0) -> tuple[PrefixTree, BlockPlan]:
    tree = build_tree(batch)
    return tree, plan_blocks(needed_nodes(batch, tree), block_tokens, retain_tokens)


def ancestors(tree: PrefixTree, row: int) -> list[int]:
    """Rows above `row`, from the root down."""
    path = []
    while (row := int(tree.parent[row])) >= 0:
        path.append(row)
    return path[::-1]


def check_plan(batch: TrainBatch, block_tokens: int, retain_tokens: int = 0) -> None:
    tree, blocks = plan(batch, block_tokens, retain_tokens)
    needed = {row for target in trained_rows(batch, tree).tolist() for row in ancestors(tree, target)}
    rows = [row for block in blocks.blocks for row in block.rows().tolist()]
    assert sorted(rows) == sorted(needed)
    for index, block in enumerate(blocks.blocks):
        assert not block_tokens or block.tokens <= block_tokens
        mine = block.rows().tolist()
        assert block.below == [i for i, other in enumerate(blocks.blocks) if other.above == index]
        assert [blocks.blocks[i].attach for i in block.below] == sorted(
            (blocks.blocks[i].attach for i in block.below), reverse=True
        )
        path: list[int] = []
        above = block.above
        while above >= 0:
            path = blocks.blocks[above].rows().tolist()[: blocks.blocks[above].trunk] + path
            above = blocks.blocks[above].above
        # What hangs from a trunk may leave it before its end, so the path may be longer than what the block sees.
        for position, row in enumerate(mine):
            outside = [each for each in ancestors(tree, row) if each not in mine]
            assert len(outside) == block.attach
            assert set(outside) <= set(path)
            if position < block.trunk and position:
                assert tree.parent[row] == mine[position - 1], "a trunk is one path"
        held, above = 0, index
        while above >= 0:
            held += blocks.blocks[above].tokens if blocks.blocks[above].retained else 0
            above = blocks.blocks[above].above
        assert held <= retain_tokens


@pytest.mark.parametrize("block_tokens", [1, 2, 3, 5, 0])
@pytest.mark.parametrize("retain_tokens", [0, 4, 1000])
def test_every_needed_row_is_in_one_block_below_its_ancestors(block_tokens, retain_tokens):
    check_plan(batch_of(EDGE), block_tokens, retain_tokens)


@settings(max_examples=150, deadline=None)
@given(random_batches(), st.integers(0, 9), st.integers(0, 20))
def test_random_trees_are_cut_into_valid_blocks(batch, block_tokens, retain_tokens):
    check_plan(batch, block_tokens, retain_tokens)


def test_without_a_limit_the_tree_is_one_block():
    _, blocks = plan(multi_turn(4, 5), 0)
    assert len(blocks.blocks) == 1 and blocks.recomputed_tokens == 0


def test_multi_turn_trees_recompute_little_once_a_block_holds_a_rollout():
    tree, blocks = plan(multi_turn(rollouts=8, turns=10, prompt=200, turn=30), 1000)
    assert len(blocks.blocks) <= 10
    assert blocks.recomputed_tokens <= 0.15 * len(tree)


def test_retaining_the_graph_of_trunks_leaves_nothing_to_recompute():
    _, blocks = plan(multi_turn(4, 5), 64, retain_tokens=10_000)
    assert len(blocks.blocks) > 4 and blocks.recomputed_tokens == 0


def test_a_thousand_nested_forks_are_planned_in_under_a_second():
    batch = nested(1100)
    began = time.process_time()
    _, blocks = plan(batch, 64)
    assert time.process_time() - began < 1
    assert blocks.tokens == 1099


def test_rows_after_the_last_trained_token_are_not_run():
    batch = batch_of([[1, 2, 3, 4, 5, 6]])
    batch.trained[3:] = False
    _, blocks = plan(batch, 0)
    np.testing.assert_array_equal(blocks.blocks[0].rows(), [0, 1])
