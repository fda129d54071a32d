"""An environment is tried before a run depends on it: its first task is played, by its demonstration and by an agent that
does everything wrong.

What is found so would fail every episode. What only some tasks do wrong is told, and does not keep a run from starting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.host import EnvironmentHost
from envs.protocol import Action, EnvironmentFailed, Message, ToolCall
from envs.registry import BUILT_IN
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.records import Ending, Task

TRIED = 3
"""Tasks that may fail, one after another, before the environment counts as broken."""
OPENED_AT_ONCE = 4
NO_TOOL = "no_such_tool"


@dataclass(frozen=True, slots=True)
class Opening:
    """What an agent gets to see of a task first."""

    task: Task
    messages: list[Message]
    tools: list[dict[str, Any]]


def trial_config(config: EnvironmentConfig) -> EnvironmentConfig:
    """For an `EnvironmentHost` to try `config` in: a process of its own, but for environments that are known to be safe.

    A user who is played by a model that may not be up yet is replaced by a scripted one.
    """
    changes: dict[str, Any] = {"processes": 0 if config.name in BUILT_IN else 1}
    if config.user.kind == "llm":
        changes["user"] = config.user.model_copy(update={"kind": "scripted"})
    return config.model_copy(update=changes)


async def try_environment(config: EnvironmentConfig, tasks: Sequence[Task]) -> list[str]:
    """`try_playing` in a place of its own."""
    async with EnvironmentHost(trial_config(config)) as host:
        return await try_playing(host, tasks)


async def try_playing(host: EnvironmentHost, tasks: Sequence[Task]) -> list[str]:
    """Play the first of `tasks`, or another one where it fails. Returns what failed, in words.

    UserError where each of the first `TRIED` fails.
    """
    failures = []
    for task in tasks[:TRIED]:
        try:
            await _play(host, task)
            return [f"task {failed.task_id} failed when it was tried: {failure}" for failed, failure in failures]
        except EnvironmentFailed as failure:
            failures.append((task, failure))
    first, failure = failures[0]
    others = f"; so do the {len(failures) - 1} others that were tried" if len(failures) > 1 else ""
    raise UserError(f"environment.name {first.environment!r} fails on task {first.task_id!r}: {failure}{others}")


async def open_all(host: EnvironmentHost, tasks: Sequence[Task]) -> tuple[list[Opening], list[str]]:
    """The openings of those of `tasks` that could be opened, and what failed with the others, in words."""
    slots = asyncio.Semaphore(OPENED_AT_ONCE)

    async def opened(task: Task) -> Opening | EnvironmentFailed:
        environment = host.environment(task)
        async with slots:
            try:
                observation, tools = await environment.reset()
                return Opening(task, observation.messages, tools)
            except EnvironmentFailed as failure:
                return failure
            finally:
                await environment.close()

    results = await asyncio.gather(*map(opened, tasks))
    failed = [(task, each) for task, each in zip(tasks, results, strict=True) if isinstance(each, EnvironmentFailed)]
    warnings = []
    if failed:
        task, failure = failed[0]
        warnings = [f"{len(failed)} of {len(tasks)} tasks could not be opened; the first is {task.task_id}: {failure}"]
    return [each for each in results if isinstance(each, Opening)], warnings


async def _play(host: EnvironmentHost, task: Task) -> None:
    """Raises EnvironmentFailed, with what the agent did in front where it is not the demonstration."""
    environment = host.environment(task)
    try:
        _, tools = await environment.reset()
        ended = None
        for action in await environment.demonstration():
            ended = (await environment.step(action)).ended
            if ended is not None:
                break
        await environment.score(ended or Ending.MAX_TURNS)
    finally:
        await environment.close()
    environment = host.environment(task)
    try:
        await environment.reset()
        ended = None
        for what, action in _mistakes(tools):
            try:
                ended = (await environment.step(action)).ended
            except EnvironmentFailed as failure:
                raise EnvironmentFailed(
                    f"an agent that {what} is to be answered by a message that it can read, but {failure}", failure.details
                ) from None
            if ended is not None:
                break
        await environment.score(ended or Ending.MAX_TURNS)
    finally:
        await environment.close()


def _mistakes(tools: list[dict[str, Any]]) -> list[tuple[str, Action]]:
    """What an agent may do that helps nobody, in words and as an action."""
    name = tools[0]["function"]["name"] if tools else NO_TOOL
    return [
        ("says nothing", Action()),
        ("talks", Action(text="Hello.")),
        ("calls a tool that is not there", Action(tool_calls=(ToolCall(NO_TOOL, {}),))),
        (f"calls {name} without arguments", Action(tool_calls=(ToolCall(name, {}),))),
        (f"calls {name} with wrong arguments", Action(tool_calls=(ToolCall(name, {"no_such_argument": [None]}),))),
        ("makes two calls at once", Action(tool_calls=(ToolCall(NO_TOOL, {}), ToolCall(name, {})))),
    ]
