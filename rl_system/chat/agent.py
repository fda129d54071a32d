"""The agent loop, written once: render, generate, parse, act, until the episode ends.

`run_episode` never raises for anything that the environment, its host or the sampler does; such an episode comes
back as `Ending.FAILED`, unscored, so that whoever runs hundreds of them loses one. Cancellation passes through. What
the agent does wrong is part of the episode: a malformed call is answered by an error it can read, and counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs.protocol import Action, AsyncEnvironment, EnvironmentFailed, Message, Observation, Score, ToolCall
from rl_system.chat.clock import EpisodeClock
from rl_system.chat.renderer import CannotRender, Renderer
from rl_system.chat.tool_calls import MalformedCall, Response
from rl_system.config.environment import EnvironmentConfig
from rl_system.config.rollout import RolloutConfig
from rl_system.origin import details, said
from rl_system.records import Ending, Episode, Failure, Task, Turn

Generate = Callable[[np.ndarray, int], Awaitable[Turn]]
"""The sampler: prompt ids (int32) and the most new tokens in, one turn out."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one episode. Token counts are of sampled tokens, except `max_model_len` (prompt and response)."""

    max_turns: int
    max_errors: int
    max_new_tokens: int
    max_episode_tokens: int
    max_model_len: int
    max_observation_tokens: int
    timeout_s: float

    @classmethod
    def of(cls, environment: EnvironmentConfig, rollout: RolloutConfig, max_model_len: int) -> Limits:
        return cls(
            max_turns=environment.max_turns,
            max_errors=environment.max_errors,
            max_new_tokens=rollout.sampling.max_new_tokens,
            max_episode_tokens=rollout.max_episode_tokens,
            max_model_len=max_model_len,
            max_observation_tokens=environment.max_observation_tokens,
            timeout_s=environment.episode_timeout_s,
        )


class GenerationFailed(Exception):
    """The sampler could not answer. Says nothing about the policy."""


async def run_episode(
    task: Task,
    group_id: int,
    index: int,
    environment: AsyncEnvironment,
    generate: Generate,
    renderer: Renderer,
    limits: Limits,
    clock: EpisodeClock | None = None,
) -> Episode:
    """Play `task` in `environment`, score it, and close the environment. clock: what `limits.timeout_s` is measured on, for
    a `generate` that stops it at times."""
    play = _Play(environment, generate, renderer, limits, clock or EpisodeClock())
    start, failure = time.perf_counter(), None
    try:
        ended = await play.until_end()
        score = await play.score(ended)
    except (EnvironmentFailed, GenerationFailed) as error:
        failure = failure_of(error)
        play.counts[f"{failure.of}_failures"] += 1
        ended, score = Ending.FAILED, Score(0.0)
    finally:
        await environment.close()
    play.timings["total"] = time.perf_counter() - start
    return Episode(
        task=task,
        group_id=group_id,
        index=index,
        turns=play.turns,
        transcript=play.transcript,
        reward=score.reward,
        reward_parts=score.parts,
        ended=ended,
        timings=dict(play.timings),
        counts=dict(play.counts + Counter(score.counts)),
        failure=failure,
    )


def failure_of(error: EnvironmentFailed | GenerationFailed) -> Failure:
    """What an episode keeps of the error that ended it."""
    if isinstance(error, EnvironmentFailed):
        return Failure("environment", str(error), error.details)
    return Failure("generation", str(error), details(error))


@dataclass
class _Play:
    """An episode under way."""

    environment: AsyncEnvironment
    generate: Generate
    renderer: Renderer
    limits: Limits
    clock: EpisodeClock
    turns: list[Turn] = field(default_factory=list)
    transcript: list[Message] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    timings: dict[str, float] = field(default_factory=lambda: {"generate": 0.0, "environment": 0.0})

    async def until_end(self) -> Ending:
        scope = self.clock.limit(self.limits.timeout_s)
        try:
            async with scope:
                return await self._turns()
        except TimeoutError:
            if not scope.expired():
                raise
            return Ending.TIMEOUT

    async def score(self, ended: Ending) -> Score:
        with self._timed("environment"):
            return await self.environment.score(ended)

    async def _turns(self) -> Ending:
        with self._timed("environment"):
            observation, tools = await self.environment.reset()
        self.transcript += observation.messages
        if self._cannot_fit(observation.messages):
            return Ending.MAX_TOKENS
        with self._rendering():
            dialogue = self.renderer.dialogue(observation.messages, tools)
        while (ended := observation.ended or self._exhausted()) is None:
            room = self._room(len(dialogue.prompt_ids))
            if room < 1:
                return Ending.MAX_TOKENS
            turn = await self._sample(dialogue.prompt_ids, room)
            response = self.renderer.parse(turn.response_ids)
            self._note(response)
            if turn.finish_reason == "length":
                return Ending.MAX_TOKENS
            observation = await self._act(response)
            self.transcript += observation.messages
            if self._cannot_fit(observation.messages):
                return observation.ended or Ending.MAX_TOKENS
            with self._rendering():
                dialogue = dialogue.extended(turn.response_ids, observation.messages)
            self.counts["fresh_renderings"] = dialogue.fresh_renderings
        return ended

    def _exhausted(self) -> Ending | None:
        if self.counts["tool_errors"] >= self.limits.max_errors:
            return Ending.MAX_ERRORS
        return Ending.MAX_TURNS if len(self.turns) >= self.limits.max_turns else None

    def _room(self, prompt_tokens: int) -> int:
        """The most tokens that the next response may have."""
        limits = self.limits
        return min(
            limits.max_new_tokens,
            limits.max_episode_tokens - self.counts["response_tokens"],
            limits.max_model_len - prompt_tokens,
        )

    async def _sample(self, prompt_ids: np.ndarray, room: int) -> Turn:
        with self._timed("generate"):
            try:
                turn = await self.generate(prompt_ids, room)
            except EnvironmentFailed:
                raise  # a demonstration, which is sampled from the environment
            except Exception as error:  # The sampler is a remote engine: whatever it raises costs this episode alone.
                raise GenerationFailed(said(error)) from error
        self.turns.append(turn)
        self.counts["response_tokens"] += len(turn.response_ids)
        return turn

    async def _act(self, response: Response) -> Observation:
        """Carry out what is well-formed, answer what is not, in the order in which it was written."""
        calls = tuple(call for call in response.calls if isinstance(call, ToolCall))
        malformed = [call for call in response.calls if isinstance(call, MalformedCall)]
        observation = Observation()
        if calls or not malformed:
            with self._timed("environment"):
                observation = await self.environment.step(Action(response.text, calls))
        self.counts["tool_calls"] += len(calls)
        self.counts["malformed_calls"] += len(malformed)
        self.counts["tool_errors"] += observation.errors + len(malformed)
        answers = [self._cut(message) for message in observation.messages]
        answers += [{"role": "tool", "content": f"Error: {call.reason}."} for call in malformed]
        return Observation(answers, observation.ended, observation.errors)

    def _cut(self, message: Message) -> Message:
        if message["role"] != "tool":
            return message
        content = self.renderer.shorten(message["content"], self.limits.max_observation_tokens)
        self.counts["cut_observations"] += content != message["content"]
        return message | {"content": content}

    def _cannot_fit(self, messages: list[Message]) -> bool:
        """Whether they are too long for any context, which may be found out without tokenising all of it."""
        most = self.limits.max_model_len * self.renderer.longest_token
        return sum(len(message["content"]) for message in messages) > most

    @contextmanager
    def _rendering(self) -> Iterator[None]:
        try:
            yield
        except CannotRender as error:
            raise EnvironmentFailed(f"the model's chat template cannot show its messages: {error}", details(error)) from error

    def _note(self, response: Response) -> None:
        """The response in the transcript, for people."""
        message: dict[str, Any] = {"role": "assistant", "content": response.text}
        if response.thinking:
            message["thinking"] = response.thinking
        if response.calls:
            message["tool_calls"] = [
                call.as_message_part() if isinstance(call, ToolCall) else {"malformed": call.reason}
                for call in response.calls
            ]
        self.transcript.append(message)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings[name] += time.perf_counter() - start
