import json
from dataclasses import replace

import numpy as np
import pytest

from rl_system.tracking.episodes import write_episodes
from tests.rl_system.algorithms.episodes import episode, turn


def prompts_of(line: dict) -> list[list[int]]:
    """The whole prompts again, as a reader of the file makes them."""
    ends: list[list[int]] = []
    prompts = []
    for each in line["turns"]:
        before = [] if each["prompt_extends"] is None else ends[each["prompt_extends"]]
        prompts.append(before + each["prompt_ids"])
        ends.append(prompts[-1] + each["response_ids"])
    return prompts


def test_what_an_earlier_turn_holds_of_a_prompt_is_not_written_again(tmp_path):
    turns = [turn([1], [2]), turn([1, 2, 3], [4]), turn([9], [8]), turn([1, 2, 3], [5]), turn([1, 7], [6])]
    write_episodes(tmp_path / "episodes.jsonl", [episode(turns)])
    (line,) = map(json.loads, (tmp_path / "episodes.jsonl").read_text().splitlines())
    assert [each["prompt_extends"] for each in line["turns"]] == [None, 0, None, 0, None]
    assert [each["prompt_ids"] for each in line["turns"]] == [[1], [3], [9], [3], [1, 7]]
    assert prompts_of(line) == [each.prompt_ids.tolist() for each in turns]


def test_a_file_tells_which_turn_each_goes_on_from_and_what_it_earned(tmp_path):
    linear, tree = (episode([turn([1], [2]), turn([1, 2], [3]), turn([1, 2], [4])]) for _ in range(2))
    tree.parents, tree.turn_rewards = [-1, 0, 0], {2: 0.5}
    write_episodes(tmp_path / "episodes.jsonl", [linear, tree], np.array([0.0, 1.0]))
    lines = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert [[each["goes_on_from"] for each in line["turns"]] for line in lines] == [[None, 0, 1], [None, 0, 0]]
    assert [each.get("reward") for each in lines[1]["turns"]] == [None, None, 0.5]


@pytest.mark.parametrize(("parents", "rewards"), [([-1], {}), ([-1, 1], {}), ([-2, 0], {}), (None, {2: 1.0})])
def test_an_episode_whose_tree_does_not_fit_its_turns_is_refused(parents, rewards):
    whole = episode([turn([1], [2]), turn([1, 2], [3])])
    with pytest.raises(ValueError, match="episode: "):
        replace(whole, parents=parents, turn_rewards=rewards)
