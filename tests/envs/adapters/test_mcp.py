"""Tools of an MCP server behind the environment protocol, with a real server process."""

import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`")

from envs.adapters.mcp import adapt
from envs.protocol import Action, ToolCall
from rl_system.errors import UserError
from rl_system.records import Ending

COMMAND = [sys.executable, str(Path(__file__).with_name("notes_server.py"))]
TASK = {"id": "milk", "prompt": "Note that I need milk.", "demonstration": [["add_note", {"text": "milk"}]]}


def score(task, episode):
    return float(task["id"] in episode.call("list_notes", {}) and bool(episode.answer))


def make(command=COMMAND, **settings):
    settings = {"tasks": lambda split: [TASK], "score": score} | settings
    list_tasks, make_environment = adapt("examples.notes", command, **settings)
    return make_environment(None, list_tasks(None, "train")[0])


@pytest.fixture
def notes():
    made = make()
    made.reset()
    yield made
    made.close()


def call(environment, name, **arguments):
    environment.step(Action(tool_calls=(ToolCall(name, arguments, "c1"),)))
    return environment.observe()


def test_the_agent_sees_the_servers_tools_and_their_results(notes):
    assert [tool["function"]["name"] for tool in notes.tools()] == ["add_note", "list_notes", "broken", "die"]
    assert notes.tools()[0]["function"]["parameters"]["required"] == ["text"]
    assert notes.observe().messages[1] == {"role": "user", "content": TASK["prompt"]}
    assert call(notes, "add_note", text="milk").messages == [{"role": "tool", "tool_call_id": "c1", "content": "1 notes"}]


def test_words_alone_end_the_episode_and_the_score_may_ask_the_server(notes):
    for action in notes.demonstration():
        notes.step(action)
    seen = notes.observe()
    assert seen.ended is Ending.AGENT_STOP
    verdict = notes.score(seen.ended)
    assert verdict.reward == 1.0 and verdict.counts == {"mcp_calls": 1}


@pytest.mark.parametrize(("name", "arguments"), [("add_note", {}), ("broken", {}), ("nothing", {}), ("add_note", {"text": 1})])
def test_a_wrong_call_is_told_to_the_agent_and_counted(notes, name, arguments):
    notes.observe()
    seen = call(notes, name, **arguments)
    assert seen.errors == 1 and seen.messages[0]["content"].startswith("Error")


def test_episodes_share_no_state():
    first, second = make(), make()
    first.reset(), second.reset()
    call(first, "add_note", text="milk")
    assert call(second, "list_notes").messages[-1]["content"] == ""
    first.close(), second.close()


def test_a_server_that_ends_is_the_environments_failure_with_its_last_words(notes):
    with pytest.raises(RuntimeError, match="ended: .*the disk is gone"):
        call(notes, "die")


def test_a_server_that_does_not_start_is_the_environments_failure_with_its_last_words():
    made = make([sys.executable, "-c", "raise SystemExit('no licence')"])
    with pytest.raises(RuntimeError, match="no licence"):
        made.reset()
    made.close()


def test_closing_leaves_no_server_process():
    before = set(psutil.Process().children(recursive=True))
    made = make()
    made.reset()
    started = set(psutil.Process().children(recursive=True)) - before
    assert any(COMMAND[1] in process.cmdline() for process in started)
    made.close()
    assert not [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_only_the_tools_that_are_named_are_shown():
    made = make(tools=["list_notes"])
    made.reset()
    assert [tool["function"]["name"] for tool in made.tools()] == ["list_notes"]
    assert call(made, "add_note", text="x").errors == 1
    made.close()
    made = make(tools=["list_note"])
    with pytest.raises(UserError, match="no tool 'list_note'"):
        made.reset()
    made.close()


def test_a_task_without_a_prompt_is_refused():
    with pytest.raises(UserError, match="id and prompt are needed"):
        make(tasks=lambda split: [{"id": 1}])
