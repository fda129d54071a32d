"""Environments by name.

A name is one of `BUILT_IN`, or the dotted path of an importable module. Either way the module offers two functions:

    list_tasks(config: EnvironmentConfig, split: str) -> list[Task]
    make_environment(config: EnvironmentConfig, task: Task) -> Environment

Modules are imported on first use, so that a process which steps no environment does not pay for their dependencies.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from envs.contract import check_tasks
from envs.protocol import Environment
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.origin import definition, explain
from rl_system.records import Task

BUILT_IN = {"tau2": "envs.tau2"}


def list_tasks(config: EnvironmentConfig, split: str) -> list[Task]:
    """Tasks of `split` in their fixed order. Raises UserError for an unknown environment, domain or split, and where
    the environment's own list cannot be made or is none."""
    function = _module(config.name).list_tasks
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


def _module(name: str) -> ModuleType:
    path = BUILT_IN.get(name, name)
    if "." not in path:
        raise UserError(
            f"environment.name is {name!r}, which is not built in; use one of {', '.join(sorted(BUILT_IN))}, or the "
            "dotted path of a module with list_tasks and make_environment"
        )
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if path == missing or path.startswith(f"{missing}."):
            raise UserError(
                f"environment.name is {name!r}, but Python finds no module {missing!r}; its package lies in the folder "
                "where the command is started, or in one that PYTHONPATH names"
            ) from None
        raise UserError(f"environment.name is {name!r}, but importing it raised {explain(error)}") from error
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # foreign code, which may do anything when it is imported
        raise UserError(f"environment.name is {name!r}, but importing it raised {explain(error)}") from error
    for function in ("list_tasks", "make_environment"):
        if not callable(getattr(module, function, None)):
            raise UserError(
                f"environment.name is {name!r}, but the module {path} ({module.__file__}) has no function {function}"
            )
    return module


@contextmanager
def _named(name: str, function: Callable) -> Iterator[None]:
    """What `function` of the environment `name` raises, as a UserError with the place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # foreign code
        where = explain(error, definition(function))
        raise UserError(f"environment.name is {name!r}, but its {function.__name__} raised {where}") from error
