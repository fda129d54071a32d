import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from envs.agents import AgentResult, Endpoint
from rl_system.algorithms import score_group
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.endpoint.agent_episode import play_agent
from rl_system.tracking.episodes import write_episodes
from tests.rl_system.algorithms.episodes import TASK, episode, turn
from tests.rl_system.chat.dialogues import limits, make_renderer
from tests.rl_system.endpoint.clients import Engine, ask, sent_back, session, system, user, written


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


def test_a_file_tells_why_nothing_is_trained_on_a_group(tmp_path):
    write_episodes(tmp_path / "episodes.jsonl", [episode([turn([1], [2])])], dropped="zero_signal")
    assert json.loads((tmp_path / "episodes.jsonl").read_text())["dropped"] == "zero_signal"


def test_a_file_tells_which_turn_each_goes_on_from_and_what_it_earned(tmp_path):
    linear, tree = (episode([turn([1], [2]), turn([1, 2], [3]), turn([1, 2], [4])]) for _ in range(2))
    tree.parents, tree.turn_rewards = [-1, 0, 0], {2: 0.5}
    write_episodes(tmp_path / "episodes.jsonl", [linear, tree], np.array([0.0, 1.0]))
    lines = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert [[each["goes_on_from"] for each in line["turns"]] for line in lines] == [[None, 0, 1], [None, 0, 0]]
    assert [each.get("reward") for each in lines[1]["turns"]] == [None, None, 0.5]


def test_a_file_shows_an_agents_calls_as_a_tree_with_what_each_earned_and_was_credited_with(tmp_path):
    renderer = make_renderer()
    calls = session(Engine(written(renderer, *"abcd")), renderer)
    opening = [system("You plan."), user("Hi.")]

    class Door:
        async def open(self):
            return Endpoint("http://127.0.0.1:1/v1", "secret")

        async def close(self):
            return await calls.close()

    async def agent(endpoint, timeout_s) -> AgentResult:
        first = await calls.call(ask(opening, caller="planner"))
        helper = await calls.call(ask([system("You help."), user("Help.")], caller="helper"))
        on = [await calls.call(ask([*opening, sent_back(first), user(word)], caller="planner")) for word in ("And?", "Or?")]
        return AgentResult(None, {f"chatcmpl-{helper.completion_id}": 0.0, on[0].completion_id: 1.0})

    played = asyncio.run(play_agent(TASK, 0, 0, agent, Door(), limits()))
    other = episode([turn([1], [2])], 0.0)
    scored = score_group([played, other], AlgorithmConfig(advantage="rloo"))
    write_episodes(tmp_path / "episodes.jsonl", [played, other], scored.advantages, scored.credits)
    line = json.loads((tmp_path / "episodes.jsonl").read_text().splitlines()[0])
    answers = [each for each in line["transcript"] if "id" in each]
    shown = [(a["call"], a["caller"], a["goes_on_from"], a.get("branches_off"), a.get("reward")) for a in answers]
    assert shown == [
        (0, "planner", None, None, None), (1, "helper", None, None, 0.0), (2, "planner", 0, None, 1.0), (3, "planner", 0, True, None)
    ]  # fmt: skip
    assert [each["content"] for each in line["transcript"] if each["call"] == 3] == ["Or?", "d"]
    assert line["reward"] == 0.5 and [each["advantage"] for each in line["turns"]] == [0.75, 0.0, 1.0, 0.5]


@pytest.mark.parametrize(("parents", "rewards"), [([-1], {}), ([-1, 1], {}), ([-2, 0], {}), (None, {2: 1.0})])
def test_an_episode_whose_tree_does_not_fit_its_turns_is_refused(parents, rewards):
    whole = episode([turn([1], [2]), turn([1, 2], [3])])
    with pytest.raises(ValueError, match="episode: "):
        replace(whole, parents=parents, turn_rewards=rewards)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_a_transcript_is_strict_json_whatever_model_environment_and_loss_left_in_it(tmp_path):
    call = {"name": "f", "arguments": {"a": float("1e999"), "b": 10**40, "text": "half \ud835", "\udc00": [math.nan]}}
    odd = episode([turn([1, 2], [3])])
    odd.turns[0].logprobs[:] = -np.inf
    odd.transcript = [{"role": "assistant", "content": "\ud835", "tool_calls": [call]}]
    odd.reward, odd.reward_parts = math.nan, {"a": math.inf, "b": np.float32(0.5)}
    odd.timings = {"total": math.inf}
    write_episodes(tmp_path / "episodes.jsonl", [odd, odd], np.array([math.nan, 0.5]))
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    first, second = (json.loads(line, parse_constant=refuse) for line in lines)
    assert (first["advantage"], second["advantage"]) == (None, 0.5)
    assert first["reward"] is None and first["reward_parts"] == {"a": None, "b": 0.5}
    assert first["transcript"][0]["content"] == "\ufffd" and first["timings"] == {"total": None}
    arguments = first["transcript"][0]["tool_calls"][0]["arguments"]
    assert arguments == {"a": None, "b": "1" + "0" * 40, "text": "half \ufffd", "\ufffd": [None]}
    assert first["turns"][0]["logprobs"] == [None]


def test_a_kill_while_episodes_are_written_leaves_the_file_of_before(tmp_path, monkeypatch):
    path = tmp_path / "group_000000.jsonl"
    write_episodes(path, [episode([turn([1], [2])])])
    before = path.read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_episodes(path, [episode([turn([1], [2])])] * 2)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.glob("group_*")] == [path.name]  # readers look for these
