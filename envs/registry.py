"""Environments by name.

A name is one of `BUILT_IN`, or the dotted path of an importable module. Either way the module offers two functions:

    list_tasks(config: EnvironmentConfig, split: str) -> list[Task]
    make_environment(config: EnvironmentConfig, task: Task) -> Environment

Modules are imported on first use, so that a process which steps no environment does not pay for their dependencies.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from envs.protocol import Environment
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.records import Task

BUILT_IN = {"tau2": "envs.tau2"}


def list_tasks(config: EnvironmentConfig, split: str) -> list[Task]:
    """Tasks of `split` in their fixed order. Raises UserError for an unknown environment, domain or split."""
    return _module(config.name).list_tasks(config, split)


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
        raise UserError(
            f"environment.name is {name!r}, but the module {error.name!r} is not installed or not on the import path"
        ) from None
    for function in ("list_tasks", "make_environment"):
        if not hasattr(module, function):
            raise UserError(f"environment.name is {name!r}, but the module {path} has no function {function}")
    return module
