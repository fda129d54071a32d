"""Upstream's simulator against a chat server over HTTP; what it says is decided by the test."""

from __future__ import annotations

import threading

import pytest

from envs.protocol import Action
from envs.registry import list_tasks, make_environment
from envs.tau2.environment import Tau2Environment
from rl_system.config.environment import EnvironmentConfig, UserConfig
from rl_system.config.load import build_config
from rl_system.errors import UserError
from rl_system.records import Ending
from tests.envs.tau2.chat_server import ChatServer, serving


def started(address: str, domain: str = "retail", **user: object) -> Tau2Environment:
    config = configuration(address, domain, **user)
    environment = make_environment(config, list_tasks(config, "test")[0])
    environment.reset()
    return environment


def configuration(address: str, domain: str, **user: object) -> EnvironmentConfig:
    values = {"kind": "llm", "model": "customer", "api_base": address, "timeout_s": 30.0, "retries": 2} | user
    return EnvironmentConfig(domain=domain, user=UserConfig(**values))


def test_a_dialogue_with_a_model_as_the_user() -> None:
    server = ChatServer(["I want my money back.", "Order 12.", "Thanks. ###STOP###"])
    with serving(server) as address:
        environment = started(address)
        opening = environment.observe()
        assert [message["role"] for message in opening.messages] == ["system", "assistant", "user"]
        assert opening.messages[-1]["content"] == "I want my money back."
        environment.step(Action(text="Which order?"))
        assert environment.observe().messages == [{"role": "user", "content": "Order 12."}]
        environment.step(Action(text="Done."))
        assert environment.observe().ended is Ending.USER_STOP
        counts = environment.score(Ending.USER_STOP).counts
    assert counts == {"user_requests": 3, "user_prompt_tokens": 30, "user_completion_tokens": 9}
    assert server.requests[0]["model"] == "customer"
    heard = server.requests[-1]["messages"]
    assert heard[0]["role"] == "system" and "<scenario>" in heard[0]["content"]
    assert [message["role"] for message in heard[1:]] == ["user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in heard[1:]][-1] == "Done."


def test_the_users_thinking_is_hidden_and_its_stop_words_do_not_count() -> None:
    with serving(ChatServer(["<think>\nShould I say ###STOP###?\n</think>\n\nHello."])) as address:
        observation = started(address).observe()
    assert observation.messages[-1]["content"] == "Hello." and observation.ended is None


def test_a_user_with_tools_uses_them_on_its_side() -> None:
    server = ChatServer([{"name": "check_status_bar", "arguments": {}}, "It says no service."])
    with serving(server) as address:
        environment = started(address, "telecom")
        observation = environment.observe()
    assert observation.messages[-1] == {"role": "user", "content": "It says no service."}
    assert {tool["function"]["name"] for tool in server.requests[0]["tools"]} >= {"check_status_bar", "toggle_data"}
    assert server.requests[1]["messages"][-1]["role"] == "tool"
    assert [message.role for message in environment._trajectory] == ["assistant", "user", "tool", "user"]


@pytest.mark.parametrize("trouble", [500, "", 5.0])
def test_a_request_that_fails_is_tried_again(trouble: int | str | float) -> None:
    server = ChatServer([trouble, "Hello."])
    with serving(server) as address:
        environment = started(address, timeout_s=0.5)
        assert environment.observe().messages[-1]["content"] == "Hello."
        assert environment.score(Ending.MAX_TURNS).counts["user_retries"] >= 1
    # A try that failed leaves nothing behind in what the user has heard.
    assert [message["role"] for message in server.requests[-1]["messages"]] == ["system", "user"]


def test_when_all_tries_fail_the_environment_fails() -> None:
    server = ChatServer([500])
    with serving(server) as address, pytest.raises(Exception, match="500|Internal"):
        started(address)
    assert len(server.requests) == 3


def test_a_user_that_only_calls_tools_ends_the_episode() -> None:
    with serving(ChatServer([{"name": "check_status_bar", "arguments": {}}])) as address:
        assert started(address, "telecom").observe().ended is Ending.MAX_TURNS


def test_requests_at_once_are_bounded() -> None:
    server = ChatServer([0.1])
    patient = {"max_concurrency": 3, "timeout_s": 60.0}
    with serving(server) as address:
        threads = [threading.Thread(target=started, args=(address,), kwargs=patient) for _ in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert len(server.requests) == 9 and 1 < server.busiest <= 3


@pytest.mark.parametrize(
    ("user", "named"),
    [
        ({}, "environment.user.model is missing"),
        ({"model": "m", "api_base": "user-simulator:8000/v1"}, "environment.user.api_base is 'user-simulator"),
        ({"model": "m", "max_concurrency": 3}, "environment.user.max_concurrency is 3"),
    ],
)
def test_a_user_that_cannot_play_is_refused(user: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        build_config({"name": "x", "environment": {"processes": 4, "user": {"kind": "llm"} | user}})
