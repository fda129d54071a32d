"""The agent loop in the real mock environment, with a sampler that writes what the test says."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from envs.host import EnvironmentHost
from envs.protocol import ToolCall
from envs.registry import list_tasks
from rl_system.chat.agent import GenerationFailed, run_episode
from rl_system.chat.demonstration import demonstrate
from rl_system.chat.tool_calls import write_calls
from rl_system.config.environment import EnvironmentConfig, UserConfig
from rl_system.records import NO_VERSION, Ending, Episode, Turn
from rl_system.tracking.episodes import write_episodes
from tests.envs import misbehaving
from tests.envs.tau2.chat_server import ChatServer, serving
from tests.rl_system.chat.dialogues import DROPS_THINKING, HERMES, Writer, episode_of, limits, make_renderer, make_tokenizer

CONFIG = EnvironmentConfig(processes=0, step_timeout_s=1.0)
TASK = list_tasks(CONFIG, "base")[0]
GOLD = write_calls([ToolCall("create_task", {"user_id": "user_1", "title": "Important Meeting"})], "hermes")
DONE = write_calls([ToolCall("done", {})], "hermes")
READ = write_calls([ToolCall("get_users", {})], "hermes")


def episode(*texts: str, **bounds: float) -> Episode:
    renderer = make_renderer()
    return episode_of(CONFIG, TASK, Writer(renderer, texts), renderer, limits(**bounds))


def test_an_episode_is_what_happened() -> None:
    played = episode(GOLD, DONE)
    assert (played.task, played.group_id, played.index) == (TASK, 3, 1)
    assert (played.ended, played.reward, played.reward_parts) == (
        Ending.AGENT_STOP,
        1.0,
        {"db": 1.0, "communicate": 1.0},
    )
    assert [message["role"] for message in played.transcript] == ["system", "assistant", "tool", "assistant"]
    assert played.counts["tool_calls"] == 2 and "tool_errors" not in played.counts
    assert 0 < played.timings["environment"] < played.timings["total"]
    first, second = played.turns
    extended = np.concatenate([first.prompt_ids, first.response_ids])
    assert np.array_equal(second.prompt_ids[: len(extended)], extended)
    assert make_tokenizer().decode(second.response_ids) == DONE + "<|im_end|>"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>{oops}</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "create_task"', "not closed"),
        (write_calls([ToolCall("make_coffee", {})], "hermes"), "make_coffee"),
        (write_calls([ToolCall("create_task", {"user_id": 5})], "hermes"), "title"),
        (write_calls([ToolCall("create_task", {"user_id": ["user_1"], "title": "x"})], "hermes"), "unhashable"),
        ("I think I should create a task.", "Call a tool"),
        ("", "Call a tool"),
        ("<think>never closed", "Call a tool"),
    ],
)
def test_a_mistake_is_answered_by_an_error_and_can_be_made_good(text: str, error: str) -> None:
    played = episode(text, GOLD, DONE)
    assert error in played.transcript[2]["content"] and played.transcript[2]["role"] == "tool"
    assert (played.reward, played.counts["tool_errors"]) == (1.0, 1)
    assert error in make_tokenizer().decode(played.turns[1].prompt_ids)


def test_malformed_calls_are_counted_and_good_calls_beside_them_are_carried_out() -> None:
    played = episode(f"<tool_call>{{oops}}</tool_call>\n{GOLD}", DONE)
    assert (played.reward, played.counts["malformed_calls"], played.counts["tool_calls"]) == (1.0, 1, 2)


def test_too_many_errors_end_the_episode() -> None:
    played = episode(*["nonsense"] * 10, max_errors=3)
    assert (played.ended, len(played.turns), played.reward) == (Ending.MAX_ERRORS, 3, 0.0)


def test_too_many_turns_end_the_episode() -> None:
    played = episode(GOLD, *[READ] * 10, max_turns=4)
    assert (played.ended, len(played.turns), played.reward) == (Ending.MAX_TURNS, 4, 0.0)


def test_a_response_cut_by_its_limit_ends_the_episode_and_is_kept() -> None:
    played = episode(GOLD, DONE, max_new_tokens=10)
    assert (played.ended, played.reward) == (Ending.MAX_TOKENS, 0.0)
    assert [len(turn.response_ids) for turn in played.turns] == [10]
    assert "tool_calls" not in played.counts


def test_an_episode_never_samples_more_than_its_tokens() -> None:
    played = episode(*[READ] * 10, max_episode_tokens=100)
    assert (played.ended, played.reward) == (Ending.MAX_TOKENS, 0.0)
    assert sum(len(turn.response_ids) for turn in played.turns) == 100 == played.counts["response_tokens"]


def test_no_prompt_with_its_response_is_longer_than_the_context() -> None:
    longest = len(episode(READ, DONE).turns[1].prompt_ids) + 5
    played = episode(*[READ] * 10, max_model_len=longest)
    assert played.ended is Ending.MAX_TOKENS and len(played.turns) == 2
    assert max(len(turn.prompt_ids) + len(turn.response_ids) for turn in played.turns) == longest


def test_a_first_prompt_that_does_not_fit_ends_the_episode_without_a_turn() -> None:
    played = episode(GOLD, max_model_len=50)
    assert (played.ended, played.turns, played.reward) == (Ending.MAX_TOKENS, [], 0.0)


def test_an_oversize_result_is_cut_for_the_agent_and_counted() -> None:
    played = episode(READ, GOLD, DONE, max_observation_tokens=16)
    assert "more tokens]" in played.transcript[2]["content"]
    assert played.counts["cut_observations"] == 2
    assert played.reward == 1.0


def test_a_response_without_its_end_token_goes_on() -> None:
    renderer = make_renderer()
    played = episode_of(CONFIG, TASK, Writer(renderer, [GOLD, DONE], end=False), renderer, limits())
    assert played.reward == 1.0
    first, second = played.turns
    assert second.prompt_ids[len(first.prompt_ids) + len(first.response_ids)] == renderer.end_id


def test_the_wall_clock_ends_an_episode_and_what_was_sampled_is_kept() -> None:
    renderer = make_renderer()
    writer = Writer(renderer, [READ])

    async def generate(prompt_ids: np.ndarray, most: int) -> Turn:
        if not writer.texts:
            await asyncio.sleep(60)
        return await writer(prompt_ids, most)

    start = time.monotonic()
    played = episode_of(CONFIG, TASK, generate, renderer, limits(timeout_s=0.5))
    assert (played.ended, len(played.turns), played.reward) == (Ending.TIMEOUT, 1, 0.0)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("error", [GenerationFailed("gone"), TimeoutError("late"), ConnectionError("reset")])
def test_a_sampler_that_breaks_fails_the_episode_and_nothing_else(error: Exception) -> None:
    async def generate(prompt_ids: np.ndarray, most: int) -> Turn:
        raise error

    played = episode_of(CONFIG, TASK, generate, make_renderer(), limits())
    assert (played.ended, played.reward, played.counts) == (Ending.FAILED, 0.0, {"generation_failures": 1})


@pytest.mark.parametrize("behaviour", ["hangs", "raises", "raises_in_reset", "raises_in_score", "hangs_in_reset"])
def test_an_environment_that_breaks_fails_the_episode_and_nothing_else(behaviour: str) -> None:
    config = EnvironmentConfig(name=misbehaving.__name__, processes=0, step_timeout_s=0.3)
    task = next(task for task in misbehaving.list_tasks(config, "train") if task.task_id == behaviour)
    renderer = make_renderer()
    # Threads that hang cannot be ended; misbehaving ones sleep, and the test's process does not wait for them.
    if "hangs" in behaviour:
        config = config.model_copy(update={"processes": 1})
    played = episode_of(config, task, Writer(renderer, ["hello", "bye"]), renderer, limits())
    assert (played.ended, played.reward, played.reward_parts) == (Ending.FAILED, 0.0, {})
    assert played.counts["environment_failures"] == 1


def test_a_wrong_ending_that_the_evaluator_cannot_judge_earns_nothing_and_is_no_failure() -> None:
    """Upstream's evaluator raises here: the task that an assertion asks for was never created."""
    task = next(each for each in list_tasks(CONFIG, "base") if each.task_id == "create_task_1_with_env_assertions")
    renderer = make_renderer()
    played = episode_of(CONFIG, task, Writer(renderer, [DONE]), renderer, limits())
    assert (played.ended, played.reward, played.counts["evaluator_errors"]) == (Ending.AGENT_STOP, 0.0, 1)


def test_a_cancelled_episode_closes_its_environment() -> None:
    async def run() -> int:
        async with EnvironmentHost(CONFIG) as host:

            async def generate(prompt_ids: np.ndarray, most: int) -> Turn:
                return await asyncio.sleep(60)

            playing = asyncio.create_task(
                run_episode(TASK, 0, 0, host.environment(TASK), generate, make_renderer(), limits())
            )
            await asyncio.sleep(0.3)
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
            return host.statistics()["environments_open"]

    assert asyncio.run(run()) == 0


def test_thinking_and_stop_words_in_it_never_reach_the_user() -> None:
    config = EnvironmentConfig(domain="retail", user=UserConfig(kind="scripted"), processes=0)
    renderer = make_renderer(DROPS_THINKING)
    secret = "<think>\nThe user is wrong. ###STOP###\n</think>\n\nHow can I help?"
    played = episode_of(config, list_tasks(config, "test")[0], Writer(renderer, [secret] * 3), renderer, limits())
    assert played.ended is Ending.USER_STOP
    said = [message for message in played.transcript if message["role"] == "assistant"][1:]
    assert {message["content"] for message in said} == {"How can I help?"}
    assert {message["thinking"] for message in said} == {"The user is wrong. ###STOP###"}


@pytest.mark.parametrize(
    "secret",
    [
        "<think>\nThe user is wrong. ###STOP###\n</think>\n\nHow can I help?",
        "The user is wrong. ###STOP###\n</think>\n\nHow can I help?",
        "How can I help?<think>The user is wrong. ###STOP###",
    ],
)
def test_what_the_agent_thinks_is_never_sent_to_the_users_model(secret: str) -> None:
    server = ChatServer(["Hello.", "Go on.", "Thanks. ###STOP###"])
    with serving(server) as address:
        user = UserConfig(kind="llm", model="customer", api_base=address)
        config = EnvironmentConfig(domain="mock", user=user, processes=0)
        renderer = make_renderer(DROPS_THINKING)
        played = episode_of(config, list_tasks(config, "base")[0], Writer(renderer, [secret] * 2), renderer, limits())
    assert played.ended is Ending.USER_STOP
    heard = [each["content"] for request in server.requests for each in request["messages"] if each["role"] == "user"]
    assert "How can I help?" in heard and not any("wrong" in words or "STOP" in words for words in heard)


def demonstrations(config: EnvironmentConfig, split: str, choose: Callable[[list], list]) -> list[Episode]:
    async def run() -> list[Episode]:
        async with EnvironmentHost(config) as host:
            return await asyncio.gather(
                *(
                    demonstrate(
                        task, host.environment(task), make_renderer(), limits(max_model_len=10**6, max_turns=60)
                    )
                    for task in choose(list_tasks(config, split))
                )
            )

    return asyncio.run(run())


def test_a_demonstration_earns_the_full_reward_in_one_sequence() -> None:
    for played in demonstrations(CONFIG, "train", lambda tasks: tasks[:16]):
        assert (played.ended, played.reward) == (Ending.AGENT_STOP, 1.0)
        for earlier, later in zip(played.turns, played.turns[1:], strict=False):
            whole = np.concatenate([earlier.prompt_ids, earlier.response_ids])
            assert np.array_equal(later.prompt_ids[: len(whole)], whole)
        for turn in played.turns:
            assert turn.response_ids[-1] == make_renderer().end_id
            assert (turn.versions == NO_VERSION).all() and (turn.logprobs == 0).all()


def test_a_demonstration_of_a_dialogue_goes_through_the_user() -> None:
    config = EnvironmentConfig(domain="telecom", user=UserConfig(kind="scripted"), processes=0)
    for played in demonstrations(config, "test", lambda tasks: tasks[:3]):
        assert (played.ended, played.reward) == (Ending.USER_STOP, 1.0)


def misbehaving_episode(behaviour: str, texts: list[str], template: str = HERMES, **bounds: float) -> Episode:
    config = EnvironmentConfig(name=misbehaving.__name__, processes=0, step_timeout_s=5.0)
    renderer = make_renderer(template)
    (task,) = misbehaving.list_tasks(config, behaviour)
    return episode_of(config, task, Writer(renderer, texts), renderer, limits(**bounds))


def test_whatever_text_an_environment_gives_can_be_shown_and_written_down(tmp_path: Path) -> None:
    played = misbehaving_episode("odd_text", ["hello", "bye"])
    assert (played.ended, played.reward) == (Ending.USER_STOP, 1.0)
    shown = make_tokenizer().decode(played.turns[1].prompt_ids)
    assert shown.count("half \ufffd, whole \U0001d400, \x00\x1b[31m\u202e") == 2
    assert shown.count("<|im_end|>") == 4, "of the turns alone"
    write_episodes(tmp_path / "episodes.jsonl", [played])
    (line,) = (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["transcript"][2]["content"].startswith("half \ufffd, whole \U0001d400")


def test_a_result_of_any_length_is_cut_without_reading_all_of_it() -> None:
    began = time.monotonic()
    played = misbehaving_episode("huge", ["hello", "bye"])
    assert played.ended is Ending.USER_STOP
    assert "more characters]" in played.transcript[2]["content"] and len(played.transcript[2]["content"]) < 100_000
    assert time.monotonic() - began < 10


def test_a_message_that_no_context_has_room_for_ends_the_episode_like_a_full_context() -> None:
    began = time.monotonic()
    played = misbehaving_episode("huge_user", ["hello", "bye"])
    assert (played.ended, len(played.turns)) == (Ending.MAX_TOKENS, 1)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("failing", ["raise_exception('after a user comes an assistant')", "1 + none"])
def test_a_dialogue_that_the_template_refuses_fails_its_episode_and_nothing_else(failing: str) -> None:
    refuses = HERMES + "{%- if messages | length == 3 and 'said' in messages[-1].content %}{{ " + failing + " }}{% endif %}"
    played = misbehaving_episode("well", ["hello", "bye"], refuses)
    assert played.ended is Ending.FAILED and played.counts["environment_failures"] == 1
    assert "chat template cannot show" in played.failure.what
