import numpy as np

from rl_system.algorithms.batching import join_groups, minibatches
from rl_system.records import NO_VERSION, Sequence


def sequence(length: int, version: int, prompt: int = 2) -> Sequence:
    trained = np.arange(length) >= prompt
    versions = np.where(trained, version, NO_VERSION)
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
