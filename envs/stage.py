"""The environments of one process, by key, and what may be asked of them.

Invariants: an environment is called by one thread at a time, in the order in which its calls arrive at its lock.
Whatever it raises, and whatever it gives that the protocol does not allow, leaves here as EnvironmentFailed: environments
are foreign code, and what is wrong with one belongs to one episode.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from envs.agents import AgentResult, AgentRun, Endpoint
from envs.contract import (
    ContractBroken,
    check_demonstration,
    check_environment,
    check_observation,
    check_opening,
    check_score,
    check_tools,
)
from envs.protocol import Action, Environment, EnvironmentFailed, Observation, Score
from envs.registry import agent_gold, agent_of, make_environment
from rl_system.config.environment import EnvironmentConfig
from rl_system.origin import details, explain, place
from rl_system.records import Ending, Task

THREADS = 1 << 16
"""Of a place, started as they are needed: as many as environments are called at once. None may wait for another's: that wait
would count as its own time, and cost a healthy environment its episode."""


class Stage:
    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self._seats: dict[int, _Seat | AgentRun] = {}
        self._threads: dict[int, int] = {}
        """Which thread works on which environment now."""
        self._tools: list[dict[str, Any]] | None = None
        """The tools that were offered last."""
        self._coming_and_going = threading.Lock()
        self._never_to_run: set[int] = set()
        """Agents that were stopped before a thread was free for them."""

    def perform(self, key: int, verb: str, argument: Any = None) -> Any:
        """Do `verb` to environment `key`; `reset` makes it. Raises EnvironmentFailed for whatever goes wrong in it.

        An agent is known by a key too: `run` runs it to its end, `stop` ends it before; `gold` needs no run.
        """
        if verb == "close":
            seat = self._seats.pop(key, None)
            return seat.close() if seat else None
        if verb == "stop":
            return self._stop(key)
        self._threads[key] = threading.get_ident()
        try:
            if verb == "reset":
                return self._open(key, argument)
            if verb == "run":
                return self._run(key, *argument)
            if verb == "gold":
                with failing("gold"):
                    return agent_gold(argument)
            return getattr(self._seats[key], verb)(argument)
        finally:
            self._threads.pop(key, None)

    def where(self, key: int) -> tuple[str, str]:
        """Place and stack of the thread that works on environment `key` now; empty where there is none."""
        frame = sys._current_frames().get(self._threads.get(key, 0))
        if frame is None:
            return "", ""
        stack = traceback.extract_stack(frame)
        return place(stack), "".join(traceback.format_list(stack))

    def _run(self, key: int, task: Task, endpoint: Endpoint) -> AgentResult:
        with failing("run"):
            agent = AgentRun(*agent_of(task), endpoint)
            with self._coming_and_going:
                if key in self._never_to_run:
                    self._never_to_run.remove(key)
                    raise EnvironmentFailed("the run was stopped before it began")
                self._seats[key] = agent
            return agent.to_end()

    def _stop(self, key: int) -> None:
        with self._coming_and_going:
            agent = self._seats.pop(key, None)
            if agent is None:
                self._never_to_run.add(key)
        if agent is not None:
            agent.stop()

    def _open(self, key: int, task: Task) -> tuple[Observation, list[dict[str, Any]]]:
        with failing("reset"):
            seat = self._seats[key] = _Seat(check_environment(make_environment(self._config, task)))
        observation, self._tools = seat.reset(self._tools)
        return observation, self._tools


class _Seat:
    """One environment and its lock. Each verb takes one argument, for the sake of a uniform wire format."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lock = threading.Lock()

    def reset(self, tools: list[dict[str, Any]] | None) -> tuple[Observation, list[dict[str, Any]]]:
        """The opening, and the tools: `tools` themselves where it offers those."""
        environment = self._environment
        with self._lock:
            with failing("reset", environment.reset):
                environment.reset()
            with failing("observe", environment.observe):
                opening = check_opening(environment.observe(), environment.observe)
            with failing("tools", environment.tools):
                return opening, check_tools(environment.tools(), environment.tools, tools)

    def step(self, action: Action) -> Observation:
        environment = self._environment
        with self._lock:
            with failing("step", environment.step):
                environment.step(action)
            with failing("observe", environment.observe):
                return check_observation(environment.observe(), environment.observe)

    def score(self, ended: Ending) -> Score:
        method = self._environment.score
        with self._lock, failing("score", method):
            return check_score(method(ended), method)

    def demonstration(self, _: None) -> list[Action]:
        method = self._environment.demonstration
        with self._lock, failing("demonstration", method):
            return check_demonstration(method(), method)

    def close(self) -> None:
        with self._lock, failing("close", self._environment.close):
            self._environment.close()


@contextmanager
def failing(verb: str, method: Callable[..., Any] | None = None) -> Iterator[None]:
    """Whatever is raised within fails the environment. method: the one that is called, as the place where a call that
    does not fit it goes wrong."""
    try:
        yield
    except EnvironmentFailed:
        raise
    except ContractBroken as broken:
        raise EnvironmentFailed(str(broken)) from None
    except BaseException as error:  # foreign code: also SystemExit, which ends a thread without a word
        raise EnvironmentFailed(f"{verb} raised {explain(error, method)}", details(error)) from error
