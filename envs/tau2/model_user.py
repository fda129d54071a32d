"""A user played by a language model: upstream's simulator against an OpenAI-compatible server.

What the model thinks is neither shown to the agent nor searched for the words that end a dialogue. A request that
fails, times out or comes back unusable is tried again; when the tries are used up the exception escapes, and the
episode fails as one whose environment broke. All that it does between two messages of the agent (calls of its own, tries,
waiting for its turn) ends within `environment.user.reply_timeout_s`. Requests are bounded per process, and tokens are
counted per episode.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from envs.tau2.upstream import (
    AssistantMessage,
    MultiToolMessage,
    ToolMessage,
    UpstreamMessage,
    UpstreamTask,
    UserMessage,
    UserSimulator,
    World,
    is_valid_user_history_message,
)
from rl_system.chat.tool_calls import split_thinking
from rl_system.config.environment import EnvironmentConfig, UserConfig

NO_KEY = "EMPTY"
"""What servers without authentication expect; a key in the environment wins (OPENAI_API_KEY)."""

log = logging.getLogger(__name__)


class UserTooSlow(Exception):
    """The user did not come to an answer for the agent within its budget."""


class ModelUser:
    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config.user
        self._gate = _gate(max(1, config.user.max_concurrency // max(config.processes, 1)))
        self.counts: Counter[str] = Counter()
        self._deadline = 0.0
        """When the answer to the agent has to be there, by `time.monotonic`."""

    def open(self, task: UpstreamTask, world: World, history: list[UpstreamMessage]) -> None:
        self._simulator = UserSimulator(
            tools=world.get_user_tools() if world.user_tools is not None else None,
            instructions=str(task.user_scenario),
            llm=f"openai/{self._config.model}",
            llm_args=request_arguments(self._config),
        )
        self._state = self._simulator.get_init_state([each for each in history if is_valid_user_history_message(each)])

    def reply(self, message: AssistantMessage | list[ToolMessage]) -> UserMessage:
        """Raises UserTooSlow, and whatever the last try for a usable message raised."""
        if isinstance(message, AssistantMessage):
            self._deadline = time.monotonic() + self._config.reply_timeout_s
        else:
            message = message[0] if len(message) == 1 else MultiToolMessage(role="tool", tool_messages=message)
        for attempt in range(self._config.retries + 1):
            state = self._state.model_copy(update={"messages": list(self._state.messages)})
            try:
                with self._turn_to_ask():
                    answer, state = self._simulator.generate_next_message(message, state)
                answer.content = split_thinking(answer.content or "")[1].strip() or None
                answer.validate()
            except UserTooSlow:
                raise
            except (
                Exception
            ) as error:  # The client raises whatever its transport, its parser or the model make it raise.
                self.counts["user_retries"] += 1
                if attempt == self._config.retries:
                    raise
                log.warning("the user's model gave no usable message (%s: %s)", type(error).__name__, error)
            else:
                break
        self._state = state
        self.counts["user_requests"] += 1
        for name in ("prompt_tokens", "completion_tokens"):
            self.counts[f"user_{name}"] += (answer.usage or {}).get(name, 0)
        return answer

    @contextmanager
    def _turn_to_ask(self) -> Iterator[None]:
        """Wait until a request may be made, and let it take what is left of the budget at most."""
        if not self._gate.acquire(timeout=max(self._deadline - time.monotonic(), 0.0)):
            raise self._too_slow()
        try:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise self._too_slow()
            self._simulator.llm_args["timeout"] = min(self._config.timeout_s, left)
            yield
        finally:
            self._gate.release()

    def _too_slow(self) -> UserTooSlow:
        return UserTooSlow(
            f"the user's model brought no answer for the agent in environment.user.reply_timeout_s "
            f"{self._config.reply_timeout_s:g}, in which {self.counts['user_requests']} requests were answered and "
            f"{self.counts['user_retries']} failed since the episode began"
        )


def request_arguments(config: UserConfig) -> dict[str, object]:
    return {
        "api_base": config.api_base,
        "api_key": os.environ.get("OPENAI_API_KEY", NO_KEY),
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
        "timeout": config.timeout_s,
        # Tries are counted here, where an answer that cannot be used counts as a failure too.
        "num_retries": 0,
    }


@functools.cache
def _gate(limit: int) -> threading.BoundedSemaphore:
    return threading.BoundedSemaphore(limit)
