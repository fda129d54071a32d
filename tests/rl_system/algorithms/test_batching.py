import numpy as np

from rl_system.algorithms.batching import join_groups, minibatches, summarise
from rl_system.records import NO_VERSION, Sequence


def sequence(length: int, version: int | list[int], prompt: int = 2) -> Sequence:
    trained = np.arange(length) >= prompt
    versions = np.full(length, NO_VERSION, np.int32)
    versions[prompt:] = version
    zeros = np.zeros(length, np.float32)
    return Sequence(np.arange(length, dtype=np.int32), trained, zeros, versions, zeros, trained.astype(np.float64))


def test_minibatches_keep_the_members_of_a_group_together_and_lose_none():
    batch = join_groups({7: [sequence(4, 0)] * 3, 9: [sequence(5, 0)] * 2, 11: [sequence(6, 0)]})
    steps = minibatches(batch, 2)
    assert [sorted(set(step.group_ids)) for step in steps] == [[7, 11], [9]]
    assert sum(len(step) for step in steps) == len(batch)


def test_more_minibatches_than_groups_give_one_a_group():
    batch = join_groups({0: [sequence(4, 0)], 1: [sequence(4, 0)]})
    assert len(minibatches(batch, 5)) == 2


def test_staleness_is_counted_per_token_and_prompt_tokens_do_not_enter_it():
    summary = summarise(join_groups({0: [sequence(6, [1, 1, 3, 3])], 1: [sequence(4, 3)]}), version=3)
    assert summary.staleness_max == 2
    assert summary.staleness_mean == (2 + 2 + 0 + 0 + 0 + 0) / 6
    assert summary.mixed_sequences == 1 and summary.trained_tokens == 6
