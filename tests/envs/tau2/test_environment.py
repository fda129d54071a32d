"""The rules of a τ²-bench episode: who speaks, who may end it, what a wrong move costs."""

import pytest

from envs.protocol import Action, Observation, ToolCall
from envs.registry import list_tasks, make_environment
from envs.tau2.environment import Tau2Environment
from envs.tau2.upstream import LLMSoloAgent, registry
from rl_system.records import Ending
from tests.envs.tau2.playing import DONE, GREETING, config_for, play

STOP = "###STOP###"


def started(domain: str, split: str, kind: str, task_id: str | None = None) -> tuple[Tau2Environment, Observation]:
    config = config_for(domain, kind)
    tasks = list_tasks(config, split)
    environment = make_environment(config, next(task for task in tasks if task_id in (None, task.task_id)))
    environment.reset()
    return environment, environment.observe()


@pytest.mark.parametrize("domain", ["mock", "telecom"])
def test_alone_the_prompt_and_the_tools_are_those_of_upstreams_solo_agent(domain: str) -> None:
    environment, opening = started(domain, "base", "solo")
    world = registry.get_env_constructor(domain)(solo_mode=True)
    tools = world.get_tools() + (world.get_user_tools() if world.user_tools else [])
    upstream = LLMSoloAgent(tools=tools, domain_policy=world.get_policy(), task=environment._task)
    assert opening.messages == [{"role": "system", "content": upstream.system_prompt}]
    assert environment.tools() == [tool.openai_schema for tool in upstream.tools]


def test_a_dialogue_opens_with_upstreams_greeting_and_the_users_request() -> None:
    _, opening = started("airline", "test", "scripted")
    assert [message["role"] for message in opening.messages] == ["system", "assistant", "user"]
    assert opening.messages[1]["content"] == "Hi! How can I help you today?"


def test_a_dialogue_with_a_history_goes_on_from_it() -> None:
    _, opening = started("mock", "base", "scripted", "update_task_with_message_history")
    assert [message["role"] for message in opening.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert opening.messages[2]["tool_calls"][0]["function"]["name"] == "create_task"


def test_done_ends_an_episode_alone_and_calls_beside_it_are_not_carried_out() -> None:
    environment, _ = started("mock", "base", "solo")
    before = environment._world.get_db_hash()
    create = ToolCall("create_task", {"user_id": "user_1", "title": "Important Meeting"})
    environment.step(Action(tool_calls=(create, ToolCall("done", {}))))
    assert environment.observe().ended is Ending.AGENT_STOP
    assert environment._world.get_db_hash() == before
    with pytest.raises(RuntimeError):
        environment.step(DONE)


def test_the_agent_cannot_end_a_dialogue() -> None:
    environment, _ = started("telecom", "base", "scripted")
    ask = next(action for action in environment.demonstration() if action.text)
    for action in (DONE, Action(text=f"{ask.text} {STOP}")):
        environment.step(action)
        assert environment.observe().ended is None


def test_the_user_ends_a_dialogue() -> None:
    environment, _ = started("airline", "test", "scripted")
    environment.step(GREETING)
    observation = environment.observe()
    assert observation.ended is Ending.USER_STOP and observation.messages == [{"role": "user", "content": STOP}]


def test_words_that_nobody_reads_are_answered_by_an_error() -> None:
    environment, _ = started("mock", "base", "solo")
    environment.step(GREETING)
    observation = environment.observe()
    assert observation.errors == 1 and observation.ended is None
    assert observation.messages[0]["role"] == "tool" and "Error" in observation.messages[0]["content"]


def test_an_empty_message_is_answered_by_an_error() -> None:
    environment, _ = started("retail", "test", "scripted")
    environment.step(Action(text="  \n"))
    observation = environment.observe()
    assert observation.errors == 1 and observation.ended is None


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("no_such_tool", {}),
        ToolCall("create_task", {}),
        ToolCall("create_task", {"user_id": ["user_1"], "title": "x"}),
        ToolCall("create_task", {"user_id": "user_1", "title": {"a": 1}}),
        ToolCall("create_task", {"user_id": "user_1", "title": "x", "colour": "red"}),
        ToolCall("get_users", {"tool_name": "create_task"}),
        ToolCall("get_users", {"requestor": "user"}),
        ToolCall("__class__", {}),
    ],
)
def test_a_wrong_call_is_an_error_that_the_agent_can_read(call: ToolCall) -> None:
    environment, _ = started("mock", "base", "solo")
    environment.step(Action(tool_calls=(call,)))
    observation = environment.observe()
    assert observation.errors == 1 and observation.ended is None
    assert observation.messages[0]["content"].startswith("Error")


def test_several_calls_are_answered_in_their_order() -> None:
    environment, _ = started("mock", "base", "solo")
    calls = tuple(ToolCall("create_task", {"user_id": "user_1", "title": title}, title) for title in ("a", "b"))
    environment.step(Action(tool_calls=calls))
    observation = environment.observe()
    assert [message["tool_call_id"] for message in observation.messages] == ["a", "b"]
    assert '"title": "a"' in observation.messages[0]["content"]


def test_what_the_user_does_on_its_side_is_hidden_from_the_agent() -> None:
    config = config_for("telecom", "scripted")
    for task in list_tasks(config, "test"):
        environment, _ = play(config, task, [])
        asks = [action for action in environment.demonstration() if "on your side" in action.text]
        if asks:
            environment.step(asks[0])
            observation = environment.observe()
            assert [message["role"] for message in observation.messages] == ["user"]
            assert any(message.role == "user" and message.is_tool_call() for message in environment._trajectory)
            return
    pytest.fail("no task of the split has a user action")


def test_the_scripted_user_does_only_what_it_is_asked_for() -> None:
    environment, _ = started("telecom", "test", "scripted")
    pending = len(environment._user._pending)
    assert pending > 0
    environment.step(Action(text="Have a nice day."))
    assert environment.observe().ended is Ending.USER_STOP
    assert len(environment._user._pending) == pending
