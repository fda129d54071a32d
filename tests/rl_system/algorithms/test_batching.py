import numpy as np

from rl_system.algorithms.batching import PROBE_TOKENS, join_groups, minibatches, probe_of
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


def test_a_probe_is_the_end_of_the_first_sequence_and_covers_its_sampled_tokens_but_not_its_first():
    batch = join_groups({1: [sequence(PROBE_TOKENS + 40, 0)], 2: [sequence(5, 0)]})
    probe = probe_of(batch)
    end = int(batch.offsets[1])
    np.testing.assert_array_equal(probe.token_ids, batch.token_ids[end - PROBE_TOKENS : end])
    assert not probe.trained[0]
    np.testing.assert_array_equal(probe.trained[1:], batch.trained[end - PROBE_TOKENS + 1 : end])


def test_a_probe_of_a_short_sequence_is_the_whole_of_it():
    batch = join_groups({1: [sequence(5, 0)]})
    probe = probe_of(batch)
    np.testing.assert_array_equal(probe.token_ids, batch.token_ids)
    assert probe.trained.any()
