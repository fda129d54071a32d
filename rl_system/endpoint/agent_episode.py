"""One episode of an agent that calls the model itself, from its first call to a scored `Episode`.

`play_agent` never raises for anything that the agent, its process or an engine does. What the agent raises ends its episode
as `agent_error`; what is no fault of its own makes it `failed`, unscored, whatever the agent made of it: a call that could
not be answered, a process that died. Cancellation passes through.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from envs.agents import AgentResult, Endpoint
from envs.protocol import EnvironmentFailed
from rl_system.chat.agent import GenerationFailed, Limits, failure_of
from rl_system.endpoint.record import SessionRecord
from rl_system.records import Ending, Episode, Failure, Task


class Door(Protocol):
    """The way of one episode into an endpoint. Both raise GenerationFailed where the endpoint is gone."""

    async def open(self) -> Endpoint: ...

    async def close(self) -> SessionRecord: ...


Run = Callable[[Endpoint, float], Awaitable[AgentResult]]
"""Runs the agent once, within so many seconds. Raises TimeoutError, EnvironmentFailed."""


async def play_agent(task: Task, group_id: int, index: int, run: Run, door: Door, limits: Limits) -> Episode:
    """Let the agent play `task` through `door`, which is opened and closed."""
    start = time.perf_counter()
    record, result, failure, ended = SessionRecord(), AgentResult(0.0), None, Ending.FAILED
    try:
        endpoint = await door.open()
        try:
            result = await run(endpoint, limits.timeout_s)
            ended = Ending.AGENT_STOP
        except TimeoutError:
            ended = Ending.TIMEOUT
        finally:
            record = await door.close()
        if record.failure is not None:
            raise GenerationFailed(record.failure)
        if result.error:
            ended, failure = _ending_of_error(record), Failure("agent", result.error, result.details)
        turn_rewards = _by_turn(result, record)
    except (EnvironmentFailed, GenerationFailed) as error:
        if asyncio.current_task().cancelling():  # what went wrong on the way out takes no cancellation back
            raise asyncio.CancelledError from error
        ended, failure = Ending.FAILED, failure_of(error)
        result, turn_rewards = AgentResult(0.0), {}
    counts = Counter(record.counts)
    if failure is not None:
        counts[f"{failure.of}_failures"] += 1
    total = time.perf_counter() - start
    return Episode(
        task=task,
        group_id=group_id,
        index=index,
        turns=record.turns,
        transcript=[_with_reward(line, turn_rewards) for line in record.transcript],
        reward=_reward(result, turn_rewards),
        reward_parts={},
        ended=ended,
        timings={"total": total},
        counts=dict(counts),
        parents=record.parents,
        turn_rewards=turn_rewards,
        failure=failure,
    )


def _ending_of_error(record: SessionRecord) -> Ending:
    """An agent that raised after it was refused more calls or tokens ran out of these."""
    if record.counts.get("refused_max_turns"):
        return Ending.MAX_TURNS
    if record.counts.get("refused_max_tokens") or record.counts.get("refused_context"):
        return Ending.MAX_TOKENS
    return Ending.AGENT_ERROR


def _by_turn(result: AgentResult, record: SessionRecord) -> dict[int, float]:
    """Rewards by turn. Ids are known with and without what their protocols put before them."""
    index = {completion: number for number, completion in enumerate(record.completions)}
    rewards = {}
    for given, reward in result.by_call.items():
        number = index.get(given.rpartition("-")[2].rpartition("_")[2])
        if number is None:
            raise EnvironmentFailed(
                f"run gave a reward for {given!r}, which is no completion of this episode; the id of a completion is the `id` "
                "of what the endpoint answered"
            )
        rewards[number] = reward
    return rewards


def _with_reward(line: dict[str, Any], turn_rewards: dict[int, float]) -> dict[str, Any]:
    """A line of the transcript; an answer with the reward that it was given."""
    return line | {"reward": turn_rewards[line["call"]]} if "id" in line and line["call"] in turn_rewards else line


def _reward(result: AgentResult, turn_rewards: dict[int, float]) -> float:
    """Of the episode: what it was given, else the mean of what its calls were."""
    if result.reward is not None:
        return result.reward
    return sum(turn_rewards.values()) / len(turn_rewards) if turn_rewards else 0.0
