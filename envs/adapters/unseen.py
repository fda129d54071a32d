"""What an agent has yet to see of its environment."""

from __future__ import annotations

from envs.protocol import Message, Observation
from rl_system.records import Ending


class Unseen:
    """The part of an environment that gathers messages, errors and the end until `observe` hands them over."""

    def __init__(self) -> None:
        self._unseen: list[Message] = []
        self._ended: Ending | None = None
        self._errors = 0

    def observe(self) -> Observation:
        """As in `envs.protocol.Environment`."""
        seen = Observation(self._unseen, self._ended, self._errors)
        self._unseen, self._errors = [], 0
        return seen
