"""What an environment gives is what the protocol says, or an error that names what was given and what would be right.

Environments are foreign code. What they give is looked at once, where it comes in, so that nothing further on meets a
reward that is no number or a message that no template can show. Whatever passes is plain data: JSON could hold it.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from envs.protocol import Action, Environment, Message, Observation, Score, ToolCall
from rl_system.errors import UserError
from rl_system.origin import definition, one_line
from rl_system.records import Ending, Task

AGENT_FUNCTIONS = ("run", "tasks")
METHODS = ("reset", "tools", "observe", "step", "score", "demonstration", "close")
ROLES = ("system", "user", "assistant", "tool")
ENDINGS = tuple(ended for ended in Ending if ended not in (Ending.FAILED, Ending.AGENT_ERROR))
SHOWN_DUPLICATES = 3


class ContractBroken(Exception):
    """An environment gave what the protocol does not allow. The message tells what, where, and what would be right."""


def check_environment(environment: Any) -> Environment:
    """`environment`, which has all methods of the protocol."""
    for name in METHODS:
        if not callable(getattr(environment, name, None)):
            raise ContractBroken(f"make_environment gave {_shown(environment)}, which has no method {name}")
    return environment


def check_opening(observation: Any, method: Callable) -> Observation:
    """What `observe` may give after `reset`: also something to read."""
    opening = check_observation(observation, method)
    if not opening.messages:
        raise ContractBroken(
            f"{_name(method)} gave no message after reset; the opening of the dialogue has at least one, such as what "
            "the agent is to do"
        )
    return opening


def check_observation(observation: Any, method: Callable) -> Observation:
    """What `observe` may give. method: the bound method that gave it."""
    if not isinstance(observation, Observation):
        raise _wrong(method, observation, "an envs.protocol.Observation")
    if not isinstance(observation.messages, list | tuple):
        raise _wrong(method, observation.messages, "a list of chat messages", "as its messages")
    for message in observation.messages:
        _check_message(message, method)
    ended, errors = observation.ended, observation.errors
    if ended is not None and (not isinstance(ended, Ending) or ended not in ENDINGS):
        allowed = ", ".join(each.name for each in ENDINGS)
        raise _wrong(method, ended, f"None or an Ending ({allowed})", "as ended")
    if not isinstance(errors, numbers.Integral) or errors < 0:
        raise _wrong(method, errors, "how many calls of the last action failed, a whole number", "as errors")
    return Observation(list(observation.messages), ended, int(errors))


def check_tools(tools: Any, method: Callable, known: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """What `tools` may give: JSON schemas of functions, each with a name of its own.

    known: tools that were found to be right before. The environments of a task set mostly offer the same ones.
    """
    if known is not None and tools == known:
        return known
    if not isinstance(tools, list | tuple):
        raise _wrong(method, tools, "a list of tool schemas")
    for tool in tools:
        _check_plain(tool, method, "a tool")
    if reason := _why_no_schemas(tools):
        raise ContractBroken(f"{_name(method)} gave tools that are no schemas: {reason}")
    return list(tools)


def check_score(score: Any, method: Callable) -> Score:
    """What `score` may give, as plain numbers."""
    if not isinstance(score, Score):
        raise _wrong(method, score, "an envs.protocol.Score, such as Score(1.0)")
    for name in ("parts", "counts"):
        if not isinstance(getattr(score, name), dict):
            raise _wrong(method, getattr(score, name), "a dict of numbers by name", f"as {name}")
    parts = {str(name): _number(value, method, f"as part {name!r}") for name, value in score.parts.items()}
    counts = {str(name): _count(value, method, f"as count {name!r}") for name, value in score.counts.items()}
    return Score(_number(score.reward, method, "as the reward"), parts, counts)


def check_demonstration(actions: Any, method: Callable) -> list[Action]:
    """What `demonstration` may give. An empty one says that none is known."""
    if not isinstance(actions, list | tuple):
        raise _wrong(method, actions, "a list of envs.protocol.Action, empty where no solution is known")
    for action in actions:
        if not isinstance(action, Action):
            raise _wrong(method, action, "an envs.protocol.Action", "in its list")
        if not isinstance(action.text, str):
            raise _wrong(method, action.text, "a str", "as the text of an action")
        if not isinstance(action.tool_calls, list | tuple):
            raise _wrong(method, action.tool_calls, "a tuple of envs.protocol.ToolCall", "as tool_calls of an action")
        for call in action.tool_calls:
            if not isinstance(call, ToolCall):
                raise _wrong(method, call, "an envs.protocol.ToolCall", "as a tool call")
            if not isinstance(call.name, str) or not isinstance(call.arguments, dict):
                raise _wrong(method, call, "a name and a dict of arguments", "as a tool call")
            _check_plain(call.arguments, method, f"the arguments of {call.name}")
    return [Action(action.text, tuple(action.tool_calls)) for action in actions]


def check_tasks(tasks: Any, function: Callable, name: str) -> list[Task]:
    """What `list_tasks` of the environment `name` may give: tasks, each with an id of its own. Else UserError."""
    if isinstance(tasks, str | bytes | dict) or not isinstance(tasks, Iterable):
        raise UserError(f"environment.name {name!r}: {_wrong(function, tasks, 'a list of rl_system.records.Task')}")
    tasks = list(tasks)
    seen: dict[str, Task] = {}
    twice: list[str] = []
    for task in tasks:
        if not isinstance(task, Task):
            right = _wrong(
                function, task, "a rl_system.records.Task(environment, domain, task_id, split)", "in its list"
            )
            raise UserError(f"environment.name {name!r}: {right}")
        for field in fields(task):
            value = getattr(task, field.name)
            if not isinstance(value, str) or not value:
                right = _wrong(function, value, "text", f"as {field.name} of a task")
                raise UserError(f"environment.name {name!r}: {right}")
        if task.task_id in seen:
            twice.append(task.task_id)
        seen[task.task_id] = task
    if twice:
        some = ", ".join(map(repr, sorted(set(twice))[:SHOWN_DUPLICATES]))
        raise UserError(
            f"environment.name {name!r}: {_name(function)} gave {len(tasks)} tasks, but task_id {some} more than once; a "
            "task is known by its id, give each its own"
        )
    return tasks


def check_agent_tasks(tasks: Any, function: Callable, name: str) -> dict[str, dict[str, Any]]:
    """What `tasks` of the agent `name` may give, by id: dictionaries, each with an id of its own. Else UserError."""
    if isinstance(tasks, str | bytes | dict) or not isinstance(tasks, Iterable):
        raise UserError(f"environment.name {name!r}: {_wrong(function, tasks, 'a list of dictionaries')}")
    by_id: dict[str, dict[str, Any]] = {}
    for position, task in enumerate(tasks):
        if not isinstance(task, dict):
            raise UserError(f"environment.name {name!r}: {_wrong(function, task, 'a dictionary', 'in its list')}")
        task_id = str(task.get("id", position))
        if not task_id or task_id in by_id:
            raise UserError(
                f"environment.name {name!r}: {_name(function)} gave the id {task_id!r} more than once, or none; a task is "
                "known by its id, give each its own"
            )
        by_id[task_id] = task
    return by_id


def check_gold(answers: Any, function: Callable) -> list[Action]:
    """What `gold` of an agent may give: texts, or actions where a tool is called. Else ContractBroken."""
    if not isinstance(answers, list | tuple):
        raise _wrong(function, answers, "a list of texts, what the model is to answer call by call; empty where that is not known")
    return check_demonstration([Action(each) if isinstance(each, str) else each for each in answers], function)


def check_result(value: Any, function: Callable) -> tuple[float | None, dict[str, float]]:
    """What `run` of an agent may give: the reward of the episode, or rewards by completion id. Else ContractBroken."""
    if isinstance(value, dict):
        if not value:
            raise _wrong(function, value, "a reward, or at least one by the id of a completion", "as its rewards")
        for key in value:
            if not isinstance(key, str):
                raise _wrong(function, key, "the id of a completion", "as a key of its rewards")
        return None, {key: _number(each, function, f"as the reward of completion {key!r}") for key, each in value.items()}
    return _number(value, function, "as the reward"), {}


def _check_message(message: Message, method: Callable) -> None:
    if not isinstance(message, dict) or message.get("role") not in ROLES or not isinstance(message.get("content"), str):
        raise _wrong(
            method, message, f'a dict with a "role" ({", ".join(ROLES)}) and a str as "content"', "as a message"
        )
    _check_plain(message, method, "a message")
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _wrong(method, call, 'a dict {"type": "function", "function": {"name", "arguments"}}', "as a tool call")


def _check_plain(value: Any, method: Callable, what: str) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractBroken(
            f"{_name(method)} gave {what} that is not plain data ({error}); use str, numbers, lists and dicts"
        ) from None


def _why_no_schemas(tools: Iterable[Any]) -> str | None:
    """What is wrong with the tools, in words; None where nothing is."""
    from jsonschema import Draft202012Validator, SchemaError  # only in processes that host environments

    names = set()
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            form = '{"type": "function", "function": {"name": …, "parameters": …}}'
            return f"{_shown(tool)} is not of the form {form}"
        if function["name"] in names:
            return f"there are two named {function['name']!r}"
        names.add(function["name"])
        parameters = function.get("parameters", {})
        try:
            Draft202012Validator.check_schema(parameters)
        except SchemaError as error:
            at = "".join(f"[{part!r}]" for part in error.absolute_path)
            return f"the parameters of {function['name']!r} are no JSON schema: {one_line(error.message)}" + (
                f" at {at}" if at else ""
            )
        if not isinstance(parameters, dict):
            return f"the parameters of {function['name']!r} are {_shown(parameters)}, not a dict"
    return None


def _number(value: Any, method: Callable, what: str) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise _wrong(method, value, "a finite number", what)
    return float(value)


def _count(value: Any, method: Callable, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise _wrong(method, value, "a whole number", what)
    return int(value)


def _wrong(method: Callable, given: Any, right: str, what: str = "") -> ContractBroken:
    return ContractBroken(f"{_name(method)} gave {_shown(given)}{what and ' ' + what}; it must be {right}")


def _name(method: Callable) -> str:
    """`Guessing.score (games/guessing.py, line 52)`."""
    where = definition(method)
    return getattr(method, "__qualname__", repr(method)) + (f" ({where})" if where else "")


def _shown(value: Any) -> str:
    """The value and its type, for a person."""
    try:
        text = one_line(repr(value))
    except Exception as error:  # foreign code too
        text = f"something whose repr raises {type(error).__name__}"
    return f"{text[:120]}{'…' if len(text) > 120 else ''} ({type(value).__name__})"
