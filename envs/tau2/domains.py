"""τ²-bench's domains: their tasks, and fresh worlds (upstream calls them environments) built from cached data.

Invariant: no two worlds share a mutable object. A database file is parsed once per process into plain dicts, and
every world validates its own database from them, which is several times faster than loading or deep-copying one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.tau2 import generated
from envs.tau2.upstream import (
    AIRLINE_DB_PATH,
    AIRLINE_TASK_SET_PATH,
    DB,
    MOCK_DB_PATH,
    MOCK_TASK_SET_PATH,
    RETAIL_DB_PATH,
    RETAIL_TASK_SET_PATH,
    TELECOM_DB_PATH,
    TELECOM_TASK_SET_PATH,
    TELECOM_USER_DB_PATH,
    FlightDB,
    LLMSoloAgent,
    MockDB,
    RetailDB,
    TelecomDB,
    TelecomUserDB,
    UpstreamTask,
    World,
    as_tool,
    load_file,
    registry,
)


@dataclass(frozen=True)
class Domain:
    """name: as in upstream's registry. databases: by the parameter of upstream's constructor that takes them.

    generated: splits that this project adds, as raw tasks in upstream's schema, by a function that makes them.
    """

    name: str
    databases: tuple[tuple[str, type[DB], Path], ...]
    tasks_path: Path
    solo: bool
    generated: Callable[[], dict[str, list[dict[str, Any]]]] = dict

    def build(self, solo: bool) -> World:
        """A world in upstream's default state, sharing nothing with any other."""
        databases = {argument: model.model_validate(_parsed(path)) for argument, model, path in self.databases}
        world = registry.get_env_constructor(self.name)(**databases)
        if solo:
            # What upstream's constructor does for solo mode, less a check of the tools' names that builds all schemas.
            world.solo_mode, world.policy = True, _solo_policy(self.name)
        return world

    def splits(self) -> dict[str, list[str]]:
        """Task ids by split: upstream's own, and the generated ones."""
        return _splits(self.name)

    def task(self, task_id: str) -> UpstreamTask:
        """Raises KeyError. The object is shared within the process: nobody may change it."""
        return _task(self.name, task_id)

    def tool_schemas(self, solo: bool) -> list[dict[str, Any]]:
        """What the agent is offered: its own tools; alone also the user's, and `done`."""
        return _tool_schemas(self.name, solo)


DOMAINS = {
    domain.name: domain
    for domain in (
        Domain("mock", (("db", MockDB, MOCK_DB_PATH),), MOCK_TASK_SET_PATH, solo=True, generated=generated.splits),
        Domain("airline", (("db", FlightDB, AIRLINE_DB_PATH),), AIRLINE_TASK_SET_PATH, solo=False),
        Domain("retail", (("db", RetailDB, RETAIL_DB_PATH),), RETAIL_TASK_SET_PATH, solo=False),
        *(
            Domain(
                name,
                (("db", TelecomDB, TELECOM_DB_PATH), ("user_db", TelecomUserDB, TELECOM_USER_DB_PATH)),
                TELECOM_TASK_SET_PATH,
                solo=True,
            )
            for name in ("telecom", "telecom-workflow")
        ),
    )
}


def playable_alone(task: UpstreamTask) -> bool:
    """Upstream's own condition for solo mode, and a ticket to work from."""
    return task.ticket is not None and LLMSoloAgent.check_valid_task(task)


@functools.cache
def _parsed(path: Path) -> Any:
    return load_file(path)


@functools.cache
def _splits(name: str) -> dict[str, list[str]]:
    added = {split: [task["id"] for task in tasks] for split, tasks in DOMAINS[name].generated().items()}
    path = DOMAINS[name].tasks_path
    return _parsed(path.with_name(f"split_{path.stem}.json")) | added


@functools.cache
def _raw_tasks(name: str) -> dict[str, dict[str, Any]]:
    domain = DOMAINS[name]
    upstream = _parsed(domain.tasks_path)
    added = [task for tasks in domain.generated().values() for task in tasks]
    return {task["id"]: task for task in [*upstream, *added]}


@functools.cache
def _task(name: str, task_id: str) -> UpstreamTask:
    return UpstreamTask.model_validate(_raw_tasks(name)[task_id])


@functools.cache
def _solo_policy(name: str) -> str:
    return registry.get_env_constructor(name)(solo_mode=True).get_policy()


@functools.cache
def _tool_schemas(name: str, solo: bool) -> list[dict[str, Any]]:
    world = DOMAINS[name].build(solo)
    tools = world.get_tools()
    if solo:
        tools += world.get_user_tools() if world.user_tools is not None else []
        tools.append(as_tool(done))
    return [tool.openai_schema for tool in tools]


def done() -> str:
    """Call this function when you are done with the task."""
    return LLMSoloAgent.STOP_TOKEN
