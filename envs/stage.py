"""The environments of one process, by key, and what may be asked of them.

Invariant: an environment is called by one thread at a time, in the order in which its calls arrive at its lock.
"""

from __future__ import annotations

import threading
from typing import Any

from envs.protocol import Action, Environment
from envs.registry import make_environment
from rl_system.config.environment import EnvironmentConfig
from rl_system.records import Ending, Task


class Stage:
    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self._seats: dict[int, _Seat] = {}

    def perform(self, key: int, verb: str, argument: Any = None) -> Any:
        """Do `verb` to environment `key`; `reset` makes it. Raises whatever the environment raises."""
        if verb == "reset":
            self._seats[key] = _Seat(make_environment(self._config, argument))
        if verb == "close":
            seat = self._seats.pop(key, None)
            return seat.close() if seat else None
        return getattr(self._seats[key], verb)(argument)


class _Seat:
    """One environment and its lock. Each verb takes one argument, for the sake of a uniform wire format."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lock = threading.Lock()

    def reset(self, task: Task) -> Any:
        with self._lock:
            self._environment.reset()
            return self._environment.observe(), self._environment.tools()

    def step(self, action: Action) -> Any:
        with self._lock:
            self._environment.step(action)
            return self._environment.observe()

    def score(self, ended: Ending) -> Any:
        with self._lock:
            return self._environment.score(ended)

    def demonstration(self, _: None) -> Any:
        with self._lock:
            return self._environment.demonstration()

    def close(self) -> None:
        with self._lock:
            self._environment.close()
