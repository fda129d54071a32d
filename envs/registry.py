"""Environments by name.

A name is one of `BUILT_IN`, or the path of an importable module. Either way the module offers two functions:

    list_tasks(config: EnvironmentConfig, split: str) -> list[Task]
    make_environment(config: EnvironmentConfig, task: Task) -> Environment

or, for an agent that calls the model itself (`envs.agents`):

    tasks(split: str) -> list[dict]
    run(task: dict, model: Endpoint) -> float
    gold(task: dict) -> list[str]                   # optional

Modules are imported on first use, so that a process which steps no environment does not pay for their dependencies.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from envs import agents
from envs.agents import list_agent_tasks, task_of
from envs.contract import AGENT_FUNCTIONS, check_tasks
from envs.protocol import Action, Environment
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.origin import definition, explain
from rl_system.records import Task

BUILT_IN = {"tau2": "envs.tau2"}
FUNCTIONS = ("list_tasks", "make_environment")
AGENTS_IN_A_PROCESS = 256
"""Each occupies a thread of its worker process until it ends."""


def list_tasks(config: EnvironmentConfig, split: str) -> list[Task]:
    """Tasks of `split` in their fixed order. Raises UserError for an unknown environment, domain or split, and where
    the environment's own list cannot be made or is none."""
    module = _module(config.name)
    if not _is_environment(module):
        require_processes(config)
        return list_agent_tasks(module, config.name, split)
    function = module.list_tasks
    with _named(config.name, function):
        tasks = check_tasks(function(config, split), function, config.name)
    for name in {task.environment for task in tasks} - {config.name}:
        try:
            _module(name)
        except UserError:
            raise UserError(
                f"environment.name {config.name!r}: list_tasks ({definition(function)}) gave tasks whose environment "
                f"is {name!r}, which is no environment; the first field of a task is the name of what makes it, here "
                f"{config.name!r}"
            ) from None
    return tasks


def make_environment(config: EnvironmentConfig, task: Task) -> Environment:
    """A fresh environment for one episode of `task`. Raises UserError for an unknown environment or task."""
    return _module(task.environment).make_environment(config, task)


def is_agent(config: EnvironmentConfig) -> bool:
    """Whether episodes are played by an agent that calls the model itself. Raises UserError as `list_tasks`."""
    return not _is_environment(_module(config.name))


def agent_of(task: Task) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that runs the agent, and what it is told of `task`."""
    module = _module(task.environment)
    return module.run, task_of(module, task)


def has_gold(config: EnvironmentConfig) -> bool:
    """Whether the agent `config` names knows what a perfect model would answer. Raises UserError as `list_tasks`."""
    return agents.has_gold(_module(config.name))


def agent_gold(task: Task) -> list[Action]:
    """What a perfect model would answer the agent on `task`, call by call."""
    return agents.gold_of(_module(task.environment), task)


def require_processes(config: EnvironmentConfig) -> None:
    """Agents are strangers: UserError unless they have processes of their own, with a thread for each that runs at once."""
    if config.processes == 0:
        raise UserError(
            f"environment.processes is 0, but {config.name!r} is an agent, which may hang or exit; use at least 1, so that it "
            "cannot take the environment pool along"
        )
    if config.concurrency > config.processes * AGENTS_IN_A_PROCESS:
        raise UserError(
            f"environment.concurrency is {config.concurrency}, but the {config.processes} of environment.processes run at most "
            f"{AGENTS_IN_A_PROCESS} agents each; use at least {-(-config.concurrency // AGENTS_IN_A_PROCESS)} processes"
        )


def _is_environment(module: ModuleType) -> bool:
    return all(callable(getattr(module, name, None)) for name in FUNCTIONS)


def _module(name: str) -> ModuleType:
    path = BUILT_IN.get(name, name)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if path == missing or path.startswith(f"{missing}."):
            raise UserError(
                f"environment.name is {name!r}, which is not built in ({', '.join(sorted(BUILT_IN))} is), and Python finds no "
                f"module {missing!r}; it lies in the folder where the command is started, or in one that PYTHONPATH names"
            ) from None
        raise UserError(f"environment.name is {name!r}, but importing it raised {explain(error)}") from error
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # foreign code, which may do anything when it is imported
        raise UserError(f"environment.name is {name!r}, but importing it raised {explain(error)}") from error
    if _is_environment(module) or agents.is_agent(module):
        return module
    wanted = AGENT_FUNCTIONS if any(hasattr(module, each) for each in AGENT_FUNCTIONS) else FUNCTIONS
    (absent, *_) = [each for each in wanted if not callable(getattr(module, each, None))]
    raise UserError(
        f"environment.name is {name!r}, but the module {path} ({module.__file__}) has no function {absent}; an environment has "
        f"{' and '.join(FUNCTIONS)}, an agent has {' and '.join(AGENT_FUNCTIONS)}"
    )


@contextmanager
def _named(name: str, function: Callable) -> Iterator[None]:
    """What `function` of the environment `name` raises, as a UserError with the place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # foreign code
        where = explain(error, function)
        raise UserError(f"environment.name is {name!r}, but its {function.__name__} raised {where}") from error
