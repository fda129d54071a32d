"""Agents that people have already: a module with two functions, in place of the seven methods of an environment.

    async def run(task: dict, model: Endpoint) -> float: …       # or {completion id: reward}, for credit by call
    def tasks(split: str) -> list[dict]: …
    def gold(task: dict) -> list[str]: …                         # what a perfect model would answer, call by call; optional

The agent brings its own loop, its own tools and its own framework; all it gets is an address and a key at which the model is
called in a protocol that the framework speaks. `run` may be a plain function too. Tasks are dictionaries of any content; `id`,
where there is one, is the task's id, else its position in the list.

Agents are foreign code, as environments are: one runs in a thread of a worker process (`envs.worker`), with an event loop of
its own. Invariant: whatever an agent does costs its own episode and nothing else, at worst those that shared a process
that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from envs.contract import AGENT_FUNCTIONS, check_agent_tasks, check_gold, check_result
from envs.protocol import Action, EnvironmentFailed
from rl_system.errors import UserError
from rl_system.origin import definition, details, explain
from rl_system.records import Task

CLEAN_UP_S = 5.0
"""Longest that what an agent left running in its event loop may take to end once it is cancelled."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one episode's agent calls the model. Good for that episode alone.

    base_url: of OpenAI's protocols, ends in `/v1`. name: the model's, for clients that ask for one.
    """

    base_url: str
    api_key: str
    name: str = "policy"

    @property
    def anthropic_base_url(self) -> str:
        """Of Anthropic's protocol, whose clients add `/v1` themselves."""
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How a run of an agent ended. reward: of the episode; None where only calls were rewarded, or where it raised.
    by_call: by completion id. error: what the agent raised, in one line with the place; details: the whole traceback.
    """

    reward: float | None = None
    by_call: dict[str, float] = field(default_factory=dict)
    error: str = ""
    details: str = ""


def is_agent(module: ModuleType) -> bool:
    """Whether a module is an agent's. One that also is an environment's counts as that."""
    return all(callable(getattr(module, name, None)) for name in AGENT_FUNCTIONS)


def list_agent_tasks(module: ModuleType, name: str, split: str) -> list[Task]:
    """The tasks of the agent module called `name`. Raises UserError where its own list cannot be made or is none."""
    return [Task(name, name, task_id, split) for task_id in _tasks(module, name, split)]


def task_of(module: ModuleType, task: Task) -> dict[str, Any]:
    """What the agent is told of `task`: its own dictionary, a copy. Raises UserError for an unknown one."""
    found = _tasks(module, task.environment, task.split).get(task.task_id)
    if found is None:
        raise UserError(f"task {task.task_id!r} does not exist in split {task.split!r} of {task.environment}")
    return copy.deepcopy(found)


def has_gold(module: ModuleType) -> bool:
    """Whether an agent's module knows what a perfect model would answer."""
    return callable(getattr(module, "gold", None))


def gold_of(module: ModuleType, task: Task) -> list[Action]:
    """What a perfect model would answer to the calls of `task`, in their order; empty where that is not known."""
    return check_gold(module.gold(task_of(module, task)), module.gold)


@functools.lru_cache(maxsize=16)
def _tasks(module: ModuleType, name: str, split: str) -> dict[str, dict[str, Any]]:
    """By id. Made once a process: a list may come from a large file."""
    try:
        given = module.tasks(split)
    except UserError:
        raise
    except Exception as error:  # foreign code
        where = explain(error, definition(module.tasks))
        raise UserError(f"environment.name is {name!r}, but its tasks({split!r}) raised {where}") from error
    return check_agent_tasks(given, module.tasks, name)


class AgentRun:
    """One run of an agent, in the thread that calls `to_end`."""

    def __init__(self, run: Callable[..., Any], task: dict[str, Any], endpoint: Endpoint) -> None:
        self._run, self._task, self._endpoint = run, task, endpoint
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._stopped = False
        self._ended = threading.Event()

    def to_end(self) -> AgentResult:
        """Run the agent. What it raises is in the result; raises EnvironmentFailed where it was stopped from outside."""
        try:
            value = self._value()
        except BaseException as error:  # foreign code: also SystemExit, which ends a thread without a word
            if self._stopped:
                raise EnvironmentFailed("the run was stopped") from None
            return AgentResult(error=f"run raised {explain(error, definition(self._run))}", details=details(error))
        finally:
            self._ended.set()
        reward, by_call = check_result(value, self._run)
        return AgentResult(reward, by_call)

    def stop(self) -> None:
        """Cancel the agent, and return once it has ended. One that does not give way keeps this waiting."""
        with self._lock:
            self._stopped = True
            if self._main is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._main.cancel)
        self._ended.wait()

    def _value(self) -> Any:
        if self._stopped:
            raise asyncio.CancelledError
        # A plain function may start an event loop of its own, so it is called outside of any.
        value = self._run(self._task, self._endpoint)
        return self._awaited(value) if inspect.isawaitable(value) else value

    def _awaited(self, value: Awaitable[Any]) -> Any:
        loop = asyncio.new_event_loop()
        try:
            with self._lock:
                self._loop, self._main = loop, asyncio.ensure_future(value, loop=loop)
                if self._stopped:
                    self._main.cancel()
            return loop.run_until_complete(self._main)
        finally:
            with self._lock:
                _leave(loop)


def _leave(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop without waiting for ever for what was left running in it. Threads that it started are left alone."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    with contextlib.suppress(TimeoutError):
        loop.run_until_complete(_bounded(asyncio.gather(*left, return_exceptions=True) if left else asyncio.sleep(0)))
        loop.run_until_complete(_bounded(loop.shutdown_asyncgens()))
    loop.close()


async def _bounded(work: Any) -> None:
    await asyncio.wait_for(work, CLEAN_UP_S)
