"""Whole episodes against upstream's own orchestrator, agents and evaluator, with the model's replies decided by the test.

The same replies are given to both. Then everything that the agent's model is shown, every message in its order, the
way the episode ends and its reward must be the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from envs.protocol import Action, Message
from envs.examples.tau2_upstream import ScriptedSimulator
from envs.registry import list_tasks, make_environment
from envs.tau2.environment import Tau2Environment
from envs.tau2.upstream import (
    AssistantMessage,
    DummyUser,
    LLMAgent,
    LLMSoloAgent,
    Orchestrator,
    UpstreamMessage,
    UpstreamTask,
    UpstreamToolCall,
    registry,
)
from rl_system.config.environment import EnvironmentConfig
from rl_system.records import Ending, Task
from tests.envs.tau2.playing import config_for, nothing, variants

SETTINGS = [
    ("mock", "base", "solo", 9),
    ("mock", "base", "scripted", 9),
    ("mock", "train", "solo", 12),
    ("telecom", "base", "solo", 3),
    ("telecom", "base", "scripted", 8),
    ("retail", "base", "scripted", 1),
    pytest.param("telecom", "base", "solo", 20, marks=pytest.mark.slow),
    pytest.param("retail", "base", "scripted", 8, marks=pytest.mark.slow),
    pytest.param("airline", "base", "scripted", 4, marks=pytest.mark.slow),
]
ENDS = {"agent_stop": Ending.AGENT_STOP, "user_stop": Ending.USER_STOP}


class OutOfReplies(Exception):
    """The agent's model is asked for more than the test has decided."""


@dataclass
class Played:
    """shown: the messages that the agent's model is given at each of its turns. trajectory: of the whole episode."""

    shown: list[list[Message]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    trajectory: list[tuple] = field(default_factory=list)
    ended: Ending | None = None


def here(environment: Tau2Environment, actions: list[Action]) -> Played:
    environment.reset()
    played = Played(tools=environment.tools())
    observation = environment.observe()
    messages = list(observation.messages)
    for action in actions:
        if observation.ended is not None:
            break
        played.shown.append(list(messages))
        environment.step(action)
        messages.append(as_chat(environment._trajectory[len(environment._trajectory) - 1 - trailing(environment)]))
        observation = environment.observe()
        messages += observation.messages
    played.ended = observation.ended
    played.trajectory = [comparable(message) for message in environment._trajectory]
    return played


def trailing(environment: Tau2Environment) -> int:
    """How many messages the trajectory has after the agent's last."""
    roles = [message.role for message in reversed(environment._trajectory)]
    return roles.index("assistant")


def upstream(config: EnvironmentConfig, task: UpstreamTask, actions: list[Action], monkeypatch) -> Played:
    world = registry.get_env_constructor(config.domain)(solo_mode=config.user.kind == "solo")
    played, replies = Played(), iter(actions)

    def generate(messages: list, **_: object) -> AssistantMessage:
        action = next(replies, None)
        if action is None:
            raise OutOfReplies
        played.shown.append([as_chat(message) for message in messages])
        number = sum(len(message.tool_calls or []) for message in messages if message.role == "assistant")
        given = sum(len(m.tool_calls or []) for m in history(task) if m.role == "assistant")
        calls = [
            UpstreamToolCall(id=f"call_{number - given + i}", name=call.name, arguments=dict(call.arguments))
            for i, call in enumerate(action.tool_calls, 1)
        ]
        return AssistantMessage(role="assistant", content=action.text or None, tool_calls=calls or None)

    monkeypatch.setattr("tau2.agent.llm_agent.generate", generate)
    if world.solo_mode:
        own = world.get_user_tools() if world.user_tools is not None else []
        agent = LLMSoloAgent(tools=world.get_tools() + own, domain_policy=world.get_policy(), task=task)
        user = DummyUser()
    else:
        agent = LLMAgent(tools=world.get_tools(), domain_policy=world.get_policy())
        user = ScriptedSimulator(task, world)
    played.tools = [tool.openai_schema for tool in agent.tools]
    orchestrator = Orchestrator(
        config.domain, agent, user, world, task, max_steps=10_000, max_errors=10_000, solo_mode=world.solo_mode
    )
    try:
        orchestrator.run()
        played.ended = ENDS[orchestrator.termination_reason.value]
    except OutOfReplies:
        pass
    played.trajectory = [comparable(message) for message in orchestrator.trajectory]
    return played


def history(task: UpstreamTask) -> list[UpstreamMessage]:
    return (task.initial_state and task.initial_state.message_history) or []


def as_chat(message: UpstreamMessage) -> Message:
    """The form in which a chat template takes it."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.id, "content": message.content or ""}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in getattr(message, "tool_calls", None) or []
    ]
    return {"role": message.role, "content": message.content or ""} | ({"tool_calls": calls} if calls else {})


def comparable(message: UpstreamMessage) -> tuple:
    calls = [(call.name, call.arguments, call.requestor) for call in getattr(message, "tool_calls", None) or []]
    return (message.role, message.content, calls, getattr(message, "requestor", None), getattr(message, "error", None))


def ways(config: EnvironmentConfig, task: Task, chance: random.Random) -> dict[str, list[Action]]:
    environment = make_environment(config, task)
    environment.reset()
    demonstration = environment.demonstration()
    together = Action(tool_calls=tuple(call for action in demonstration for call in action.tool_calls))
    result = variants(demonstration, chance) | {"nothing": nothing(config)}
    return result | ({"all at once": [together, *demonstration]} if together.tool_calls else {})


@pytest.mark.parametrize(("domain", "split", "kind", "sample"), SETTINGS)
def test_an_episode_is_what_upstreams_orchestrator_makes_of_it(
    domain: str, split: str, kind: str, sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, chance = config_for(domain, kind), random.Random(f"{domain} {split} {kind}")
    tasks = list_tasks(config, split)
    for task in chance.sample(tasks, min(sample, len(tasks))):
        for name, actions in ways(config, task, chance).items():
            environment = make_environment(config, task)
            ours = here(environment, actions)
            theirs = upstream(config, environment._task, actions, monkeypatch)
            assert ours.ended == theirs.ended, (task.task_id, name)
            assert ours.trajectory == theirs.trajectory, (task.task_id, name)
            assert ours.shown == theirs.shown, (task.task_id, name)
            assert ours.tools == theirs.tools
