"""Whatever an agent calls, with whatever arguments, is answered, and its episode is judged as upstream judges it."""

import json
import random
from typing import Any

import pytest

from envs.protocol import Action, ToolCall
from envs.registry import list_tasks, make_environment
from envs.tau2.environment import Tau2Environment
from rl_system.config.environment import EnvironmentConfig
from rl_system.records import Ending, Task
from tests.envs.tau2.playing import config_for, upstream_reward

SETTINGS = [
    ("mock", "base", "solo", 40),
    ("mock", "train", "solo", 20),
    ("mock", "base", "scripted", 20),
    ("telecom", "base", "solo", 12),
    ("telecom", "base", "scripted", 12),
    ("retail", "base", "scripted", 2),
    ("airline", "base", "scripted", 1),
]
"""Episodes of the quick test; the slow one plays ten times as many."""
CALLS = 25

# Values of a wrong type that a tool lets into the database are part of the test; hashing them warns.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
JUNK: list[Any] = [
    "", "wrong", "x" * 5000, "\x00", "日本", 7, -1, 0, 1e308, 10**30, None, True, [], ["a"], [["a"]], [None], {}, {"b": 1}
]  # fmt: skip
WRONG_NAMES = ["no_such_tool", "", "__init__", "get_db_hash", "update_db", "set_state", "db"]


class Wild:
    """An agent that calls the tools there are with names from the database, junk, and now and then the gold action."""

    def __init__(self, environment: Tau2Environment, chance: random.Random) -> None:
        self.chance = chance
        self.gold = environment.demonstration()[:-1]
        self.functions = [tool["function"] for tool in environment.tools() if tool["function"]["name"] != "done"]
        database = json.loads(environment._world.tools.db.model_dump_json())
        words = sorted({word for word in strings(database) if len(word) < 60})
        known = [value for action in self.gold for call in action.tool_calls for value in strings(call.arguments)]
        self.words = chance.sample(words, min(len(words), 300)) + 3 * known

    def act(self) -> Action:
        chance = self.chance
        if self.gold and chance.random() < 0.2:
            return chance.choice(self.gold)
        function = chance.choice(self.functions)
        schema = function["parameters"].get("properties", {})
        arguments = {name: self.value(each) for name, each in schema.items() if chance.random() < 0.95}
        if chance.random() < 0.05:
            arguments[chance.choice(["extra", "self", "tool_name", "requestor", "db"])] = chance.choice(JUNK)
        name = function["name"] if chance.random() < 0.97 else chance.choice(WRONG_NAMES)
        return Action(tool_calls=(ToolCall(name, arguments),))

    def value(self, schema: dict[str, Any]) -> Any:
        chance = self.chance
        if chance.random() < 0.35:
            return chance.choice(JUNK)
        if "enum" in schema:
            return chance.choice(schema["enum"])
        chosen = chance.choice(schema.get("anyOf") or [schema])
        match chosen.get("type"):
            case "string":
                return chance.choice(self.words)
            case "integer" | "number":
                return chance.choice([0, 1, 2, 10, -5, 3.5, 10**6])
            case "boolean":
                return chance.random() < 0.5
            case "array":
                return [self.value(chosen.get("items", {})) for _ in range(chance.randrange(4))]
            case "object":
                return {name: self.value(each) for name, each in chosen.get("properties", {}).items()}
        return chance.choice(JUNK)


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(word for each in value.values() for word in strings(each))]
    if isinstance(value, list):
        return [word for each in value for word in strings(each)]
    return [value] if isinstance(value, str) else []


def played(config: EnvironmentConfig, task: Task, chance: random.Random) -> tuple[Tau2Environment, int]:
    """The environment after an episode of wild calls, and how many of them it answered with an error."""
    environment = make_environment(config, task)
    environment.reset()
    environment.observe()
    agent, errors = Wild(environment, chance), 0
    for _ in range(CALLS):
        environment.step(agent.act())
        observation = environment.observe()
        if observation.ended is not None:
            break
        assert observation.messages and all(isinstance(each["content"], str) for each in observation.messages)
        errors += observation.errors
    return environment, errors


def assert_answered_and_judged(domain: str, split: str, kind: str, episodes: int) -> None:
    chance = random.Random(f"wild {domain} {split} {kind} {episodes}")
    config = config_for(domain, kind)
    ended = Ending.AGENT_STOP if kind == "solo" else Ending.USER_STOP
    tasks, errors = list_tasks(config, split), 0
    for _ in range(episodes):
        task = chance.choice(tasks)
        environment, failed = played(config, task, chance)
        errors += failed
        expected = upstream_reward(environment, ended)
        assert environment.score(ended).reward == (0.0 if expected is None else expected), task.task_id
    assert errors > episodes, "the calls were not wild"


@pytest.mark.parametrize(("domain", "split", "kind", "episodes"), SETTINGS)
def test_no_call_breaks_an_environment_or_its_score(domain: str, split: str, kind: str, episodes: int) -> None:
    assert_answered_and_judged(domain, split, kind, episodes)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("domain", "split", "kind", "episodes"), SETTINGS)
def test_no_call_of_many_breaks_an_environment_or_its_score(domain: str, split: str, kind: str, episodes: int) -> None:
    assert_answered_and_judged(domain, split, kind, 10 * episodes)
