import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.algorithms import sequences_of
from rl_system.algorithms.sequences import sequence_runs
from rl_system.records import NO_VERSION, Ending, Turn
from tests.rl_system.algorithms.episodes import episode, turn


def test_a_turn_that_starts_with_the_sequence_before_it_extends_it():
    turns = [turn([1, 2], [3, 4], version=7), turn([1, 2, 3, 4, 9, 9], [5], version=8)]
    (sequence,) = sequences_of(episode(turns), 0.5)
    assert sequence.token_ids.tolist() == [1, 2, 3, 4, 9, 9, 5]
    assert sequence.trained.tolist() == [False, False, True, True, False, False, True]
    assert sequence.versions.tolist() == [NO_VERSION, NO_VERSION, 7, 7, NO_VERSION, NO_VERSION, 8]
    np.testing.assert_allclose(sequence.behaviour_logprobs, [0, 0, -0.003, -0.004, 0, 0, -0.005], rtol=1e-6)
    assert sequence.advantages.tolist() == [0, 0, 0.5, 0.5, 0, 0, 0.5]
    assert sequence.weights.tolist() == [0, 0, 1, 1, 0, 0, 1]


def test_a_rewritten_history_starts_a_new_sequence():
    turns = [turn([1, 2], [3, 4]), turn([1, 2, 4, 9], [5]), turn([1, 2, 4, 9, 5, 6], [7])]
    first, second = sequences_of(episode(turns))
    assert first.token_ids.tolist() == [1, 2, 3, 4]
    assert second.token_ids.tolist() == [1, 2, 4, 9, 5, 6, 7]
    assert second.trained.tolist() == [False] * 4 + [True, False, True]


def test_a_prompt_that_stops_inside_the_response_before_it_starts_a_new_sequence():
    first, second = sequences_of(episode([turn([1], [2, 3]), turn([1, 2], [4])]))
    assert (first.token_ids.tolist(), second.token_ids.tolist()) == ([1, 2, 3], [1, 2, 4])


def test_versions_that_change_inside_a_response_stay_with_their_tokens():
    changing = turn([1], [2, 3, 4])
    changing.versions[:] = [5, 5, 6]
    (sequence,) = sequences_of(episode([changing]))
    assert sequence.versions.tolist() == [NO_VERSION, 5, 5, 6]


def test_each_turn_gets_its_own_advantage():
    turns = [turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 9], [5])]
    first, second = sequences_of(episode(turns), np.array([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(first.advantages, [0, 0.1, 0, 0.2], rtol=1e-6)
    np.testing.assert_allclose(second.advantages, [0, 0, 0.3], rtol=1e-6)


@pytest.mark.parametrize(
    ("ended", "truncated", "expected"),
    [
        (Ending.FAILED, "as_is", 0),
        (Ending.FAILED, "zero_reward", 0),
        (Ending.MAX_TOKENS, "mask", 0),
        (Ending.TIMEOUT, "mask", 0),
        (Ending.MAX_TOKENS, "zero_reward", 1),
        (Ending.MAX_TURNS, "as_is", 1),
        (Ending.USER_STOP, "mask", 1),
    ],
)
def test_failed_episodes_never_contribute_and_truncated_ones_unless_masked(ended, truncated, expected):
    assert len(sequences_of(episode([turn([1], [2])], ended=ended), truncated=truncated)) == expected


def test_a_turn_without_a_response_trains_nothing():
    assert sequences_of(episode([turn([1, 2], [])])) == []
    (sequence,) = sequences_of(episode([turn([1, 2], []), turn([1, 2], [3])]))
    assert sequence.trained.tolist() == [False, False, True]


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="prompt is empty"):
        sequences_of(episode([turn([], [1, 2])]))


def test_of_turns_that_extend_the_same_sequence_the_first_goes_on_and_the_others_repeat_it_untrained():
    turns = [turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 3], [5]), turn([1, 2, 3, 5, 6], [7])]
    first, second = sequences_of(episode(turns), np.array([0.1, 0.2, 0.3, 0.4]))
    assert (first.token_ids.tolist(), first.trained.tolist()) == ([1, 2, 3, 4], [False, True, False, True])
    assert second.token_ids.tolist() == [1, 2, 3, 5, 6, 7]
    assert second.trained.tolist() == [False, False, False, True, False, True]
    np.testing.assert_allclose(second.advantages, [0, 0, 0, 0.3, 0, 0.4], rtol=1e-6)


def test_a_turn_goes_on_from_any_earlier_sequence_whatever_was_asked_in_between():
    """A helper is asked between two turns of the agent that calls it."""
    turns = [turn([1], [2]), turn([9], [8]), turn([1, 2, 3], [4]), turn([9, 8, 7], [6])]
    first, second = sequences_of(episode(turns))
    assert (first.token_ids.tolist(), second.token_ids.tolist()) == ([1, 2, 3, 4], [9, 8, 7, 6])
    assert first.trained.sum() == second.trained.sum() == 2


def test_a_turn_goes_on_in_the_longest_sequence_that_its_prompt_starts_with():
    assert sequence_runs([turn([1], [2]), turn([1], [2, 3]), turn([1, 2, 3, 4], [5]), turn([1, 2, 6], [7])]) == [
        [0, 3],
        [1, 2],
    ]


def test_equal_turns_are_trained_as_often_as_they_were_sampled():
    assert sequence_runs([turn([1], [2]), turn([1], [2]), turn([1, 2], [3]), turn([1, 2], [3])]) == [[0, 2], [1, 3]]


def test_a_thousand_calls_of_one_long_history_are_cut_into_sequences_in_a_moment():
    history = np.arange(8_000)
    turns = [turn(np.append(history, index).tolist(), [index]) for index in range(1_000)]
    began = time.process_time()
    assert len(sequence_runs(turns)) == 1_000
    assert time.process_time() - began < 20


token_lists = st.lists(st.integers(0, 2), max_size=4)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), token_lists, token_lists), min_size=1, max_size=9))
def test_every_sampled_token_is_trained_once_in_the_context_in_which_it_was_sampled(parts):
    """Of a tree of turns: each goes on from the one before it, from an earlier one, or from none."""
    turns = []
    for index, (back, observation, response) in enumerate(parts):
        history = turns[index - back].token_ids.tolist() if 0 < back <= index else [0]
        turns.append(turn(history + observation, response, version=index))
    sequences = sequences_of(episode(turns))
    got = sorted(
        (int(s.versions[t]), s.token_ids[: t + 1].tolist()) for s in sequences for t in np.flatnonzero(s.trained)
    )
    expected = sorted(
        (index, [*each.prompt_ids.tolist(), *each.response_ids[: t + 1].tolist()])
        for index, each in enumerate(turns)
        for t in range(len(each.response_ids))
    )
    assert got == expected
    assert sequence_runs(turns) == plain_runs(turns)


def plain_runs(turns: list[Turn]) -> list[list[int]]:
    """The rule as it is said, looking at every sequence for every turn."""
    runs, ends = [], []
    for index, each in enumerate(turns):
        prompt = each.prompt_ids.tolist()
        fitting = [run for run, end in enumerate(ends) if prompt[: len(end)] == end]
        if fitting:
            run = max(fitting, key=lambda run: (len(ends[run]), -run))
            runs[run].append(index)
        else:
            run = len(runs)
            runs.append([index])
            ends.append([])
        ends[run] = prompt + each.response_ids.tolist()
    return runs
