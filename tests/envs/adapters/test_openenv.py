"""OpenEnv environments behind the environment protocol, with a real server of the library's own."""

import socket
import threading
import time

import pytest

core = pytest.importorskip("openenv.core", reason="needs the extra `openenv`")

import uvicorn
from openenv.core.env_server import Action as ServerAction
from openenv.core.env_server import Environment, State, create_fastapi_app
from openenv.core.env_server import Observation as ServerObservation

from envs.adapters.openenv import adapt
from envs.protocol import Action, ToolCall
from rl_system.errors import UserError
from rl_system.records import Ending


class Guess(ServerAction):
    number: int


class Hint(ServerObservation):
    text: str = ""


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **_):
        self.secret, self.steps = (seed or 0) % 10, 0
        return Hint(text="Guess a number from 0 to 9.", done=False)

    def step(self, action, timeout_s=None, **_):
        self.steps += 1
        right = action.number == self.secret
        return Hint(text="right" if right else "wrong", done=right, reward=1.0 if right else -0.1)

    @property
    def state(self):
        return State(step_count=self.steps)


@pytest.fixture(scope="module")
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=8)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)


def begun(address, number=7):
    list_tasks, make_environment = adapt("examples.guess", address)
    made = make_environment(None, list_tasks(None, "train")[number])
    made.reset()
    return made


def guess(environment, **arguments):
    environment.step(Action(tool_calls=(ToolCall("act", arguments),)))
    return environment.observe()


def test_an_episode_is_played_at_the_server_and_its_rewards_add_up(address):
    made = begun(address)
    assert made.observe().messages[1]["content"] == "Guess a number from 0 to 9."
    assert made.tools()[0]["function"]["parameters"]["required"] == ["number"]
    assert guess(made, number=3).messages[0]["content"] == "wrong"
    assert guess(made, number=7).ended is Ending.AGENT_STOP
    assert made.score(Ending.AGENT_STOP).reward == pytest.approx(0.9)
    made.close()


@pytest.mark.parametrize("arguments", [{}, {"number": "many"}, {"number": 1, "colour": "red"}])
def test_what_the_server_refuses_is_told_to_the_agent_and_counted(address, arguments):
    made = begun(address)
    made.observe()
    seen = guess(made, **arguments)
    assert seen.errors == 1 and seen.messages[0]["content"].startswith("Error")
    assert guess(made, number=7).ended is Ending.AGENT_STOP  # the session goes on
    made.close()


def test_episodes_that_run_at_once_have_sessions_of_their_own(address):
    first, second = begun(address, 1), begun(address, 2)
    assert guess(second, number=1).ended is None
    assert guess(first, number=1).ended is Ending.AGENT_STOP
    first.close(), second.close()


def test_an_address_where_nobody_answers_is_refused_in_words():
    list_tasks, make_environment = adapt("examples.guess", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="no OpenEnv server answers"):
        make_environment(None, list_tasks(None, "train")[0])
