import numpy as np
import pytest

from rl_system.allocation.handover import ABORTED, join_turns, tokens_left, tokens_so_far
from rl_system.records import Turn


def turn(prompt: list[int], response: list[int], version: int, finish_reason: str) -> Turn:
    return Turn(
        prompt_ids=np.array(prompt, np.int32),
        response_ids=np.array(response, np.int32),
        logprobs=np.array([-0.5 * token for token in response], np.float32),
        versions=np.full(len(response), version, np.int32),
        finish_reason=finish_reason,
    )


FIRST = turn([1, 2], [7, 8], 3, ABORTED)


def test_a_resumed_turn_keeps_logprobs_and_versions_of_what_was_there() -> None:
    whole = join_turns(FIRST, turn([1, 2, 7, 8], [9], 4, "stop"))
    assert whole.prompt_ids.tolist() == [1, 2] and whole.response_ids.tolist() == [7, 8, 9]
    assert whole.logprobs.tolist() == [-3.5, -4.0, -4.5] and whole.versions.tolist() == [3, 3, 4]
    assert whole.finish_reason == "stop"
    assert whole.response_ids.dtype == whole.versions.dtype == np.int32 and whole.logprobs.dtype == np.float32


def test_a_turn_that_is_handed_over_twice_has_three_parts() -> None:
    second = join_turns(FIRST, turn([1, 2, 7, 8], [9], 4, ABORTED))
    whole = join_turns(second, turn(tokens_so_far(second).tolist(), [5], 6, "length"))
    assert whole.versions.tolist() == [3, 3, 4, 6] and whole.finish_reason == "length"


def test_a_turn_that_was_handed_over_before_its_first_token_starts_from_its_prompt() -> None:
    nothing = turn([1, 2], [], 3, ABORTED)
    rest = turn([1, 2], [4], 5, "stop")
    assert join_turns(nothing, rest).response_ids.tolist() == [4] and tokens_left(nothing, 6) == 6


def test_resuming_does_not_add_to_the_token_budget() -> None:
    assert tokens_left(FIRST, 6) == 4


def test_parts_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match="does not go on"):
        join_turns(FIRST, turn([1, 2, 7], [9], 4, "stop"))
