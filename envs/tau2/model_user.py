"""A user played by a language model: upstream's simulator against an OpenAI-compatible server.

What the model thinks is neither shown to the agent nor searched for the words that end a dialogue. A request that
fails, times out or comes back unusable is tried again; when the tries are used up the exception escapes, and the
episode fails as one whose environment broke. Requests are bounded per process, and tokens are counted per episode.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections import Counter

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


class ModelUser:
    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config.user
        self._gate = _gate(max(1, config.user.max_concurrency // max(config.processes, 1)))
        self.counts: Counter[str] = Counter()

    def open(self, task: UpstreamTask, world: World, history: list[UpstreamMessage]) -> None:
        self._simulator = UserSimulator(
            tools=world.get_user_tools() if world.user_tools is not None else None,
            instructions=str(task.user_scenario),
            llm=f"openai/{self._config.model}",
            llm_args=request_arguments(self._config),
        )
        self._state = self._simulator.get_init_state([each for each in history if is_valid_user_history_message(each)])

    def reply(self, message: AssistantMessage | list[ToolMessage]) -> UserMessage:
        if isinstance(message, list):
            message = message[0] if len(message) == 1 else MultiToolMessage(role="tool", tool_messages=message)
        for attempt in range(self._config.retries + 1):
            state = self._state.model_copy(update={"messages": list(self._state.messages)})
            try:
                with self._gate:
                    answer, state = self._simulator.generate_next_message(message, state)
                answer.content = split_thinking(answer.content or "")[1].strip() or None
                answer.validate()
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
