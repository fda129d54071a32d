"""One episode of an agent, as the endpoint sees it: calls that come, turns that answer them, and what is left at the end.

Invariants: what the engine sampled is what a later prompt contains, whenever the client sends back what it was given; a
client that rewrote history gets a fresh rendering, which is counted. Every turn that the engine finished is part of the
episode, once. A session never holds a token of another one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import jinja2
import numpy as np

from rl_system.chat.agent import GenerationFailed, Limits
from rl_system.chat.renderer import Dialogue, Renderer
from rl_system.endpoint.answers import answer_of, cut_at_stop
from rl_system.endpoint.calls import Call, CallTree, Place
from rl_system.endpoint.known import Known
from rl_system.endpoint.record import SessionRecord, record_of
from rl_system.endpoint.refusals import Refused, SamplingFailed
from rl_system.endpoint.requests import TurnRequest
from rl_system.records import Turn

LONG_TEXT = 20_000
"""Characters from which on a prompt is rendered in a thread, so that other sessions' calls do not wait for it."""


class Sample(Protocol):
    def __call__(
        self, prompt_ids: np.ndarray, max_new_tokens: int, *, repeat: int, seed: int | None, stop: tuple[str, ...]
    ) -> Awaitable[Turn]:
        """One turn on `prompt_ids`. repeat: how many calls of the episode had this prompt before; seed: the client's. stop:
        texts after which the rest of the turn is not needed. Raises GenerationFailed."""


@dataclass
class Session:
    """name: tells the episodes of a run apart; ids of completions are made from it and from prompts."""

    renderer: Renderer
    limits: Limits
    sample: Sample
    name: str
    ordered: bool = False
    """Whether the record's order may depend on nothing but what was asked and sampled, and never on what was faster."""

    def __post_init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failure: str | None = None
        """Why a call could not be answered, if ever one could not. Such an episode is never scored."""
        self.known = Known()
        """What it was sent before."""
        self._tree = CallTree()
        self._calls: list[Call] = []
        self._prompts: Counter[bytes] = Counter()
        self._numbers = itertools.count()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def call(self, request: TurnRequest) -> Call:
        """Answer `request` by a turn. Raises Refused, SamplingFailed; cancelling it takes the request out of the engine."""
        self._require_open()
        self._require_calls()
        self._require_tokens()
        self.counts["calls"] += 1
        # A task of its own: the end of the episode cancels the call, and not whoever waits for it.
        task = asyncio.create_task(self._answer(request, next(self._numbers)))
        self._under_way.add(task)
        try:
            return await task
        except Refused:
            self.counts["calls"] -= 1
            raise
        except asyncio.CancelledError:
            self.counts["cancelled_calls"] += 1
            if self._closed and not asyncio.current_task().cancelling():
                self._require_open()
            raise
        finally:
            self._under_way.discard(task)

    async def prompt_tokens(self, request: TurnRequest) -> int:
        """How long the prompt of a call would be that is not made. Raises Refused."""
        self._require_open()
        place = self._tree.place(request)
        return len((await self._rendered(request, place)).prompt_ids)

    async def close(self) -> SessionRecord:
        """The episode is over: calls under way are taken out of the engine, later ones refused."""
        self._closed = True
        for task in self._under_way:
            task.cancel()
        while self._under_way:
            await asyncio.wait(self._under_way)
        return record_of(self._calls, self.counts, self.failure, ordered=self.ordered)

    def _require_calls(self) -> None:
        if self.counts["calls"] >= self.limits.max_turns:
            self.counts["refused_max_turns"] += 1
            raise Refused(
                f"this episode has made the {self.limits.max_turns} calls of the model that environment.max_turns allows",
                403, "episode_budget_exhausted",
            )  # fmt: skip

    def _require_tokens(self) -> None:
        if self.counts["response_tokens"] >= self.limits.max_episode_tokens:
            self.counts["refused_max_tokens"] += 1
            raise Refused(
                f"this episode has sampled {self.counts['response_tokens']} tokens, all that "
                f"rollout.max_episode_tokens {self.limits.max_episode_tokens} allows",
                403, "episode_budget_exhausted",
            )  # fmt: skip

    def _require_open(self) -> None:
        if self._closed:
            raise Refused("the episode of this key is over", 401, "invalid_api_key")

    async def _answer(self, request: TurnRequest, number: int) -> Call:
        place = self._tree.place(request)
        dialogue = await self._rendered(request, place)
        prompt = blake2b(dialogue.prompt_ids.tobytes(), digest_size=16, key=self.name.encode()[:64]).digest()
        repeat = self._prompts[prompt]
        self._prompts[prompt] += 1
        try:
            turn = await self.sample(
                dialogue.prompt_ids,
                self._room(request, len(dialogue.prompt_ids)),
                repeat=repeat,
                seed=request.seed,
                stop=request.stop,
            )
        except GenerationFailed as failure:
            self.failure = str(failure)
            raise SamplingFailed(f"no engine could answer: {failure}") from failure
        turn, stop_text = cut_at_stop(turn, self.renderer, request.stop)
        completion_id = f"{prompt.hex()[:24]}{repeat:04x}"
        answer = answer_of(
            turn, self.renderer, stop_text=stop_text, calls=request.calls and bool(request.tools), call_prefix=completion_id
        )
        call = Call(
            number, completion_id, request, place.parent, place.opening, place.edited, dialogue, repeat, turn, answer
        )
        self._count(call)
        self._calls.append(call)
        self._tree.add(call, place.digest)
        return call

    async def _rendered(self, request: TurnRequest, place: Place) -> Dialogue:
        messages = [_for_template(message) for message in request.messages[place.opening :]]
        size = sum(len(message["content"]) for message in messages)
        most = self.limits.max_model_len * self.renderer.longest_token
        if size > most:
            raise self._too_long(f"more than {size // self.renderer.longest_token}")
        try:
            if size < LONG_TEXT:
                return self._make(request, place, messages)
            return await asyncio.to_thread(self._make, request, place, messages)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise Refused(f"the model's chat template cannot render these messages: {error}") from error

    def _make(self, request: TurnRequest, place: Place, messages: list[dict[str, Any]]) -> Dialogue:
        if place.parent is None:
            return self.renderer.dialogue(messages, request.tools)
        return place.parent.dialogue.extended(place.parent.turn.response_ids, messages)

    def _room(self, request: TurnRequest, prompt_tokens: int) -> int:
        limits = self.limits
        if prompt_tokens >= limits.max_model_len:
            raise self._too_long(str(prompt_tokens))
        self._require_tokens()  # calls beside this one may have used it up meanwhile
        left = limits.max_episode_tokens - self.counts["response_tokens"]
        asked = request.max_tokens if request.max_tokens is not None else limits.max_new_tokens
        return min(asked, limits.max_new_tokens, left, limits.max_model_len - prompt_tokens)

    def _too_long(self, tokens: str) -> Refused:
        self.counts["refused_context"] += 1
        return Refused(
            f"the prompt has {tokens} tokens, and this model's context of {self.limits.max_model_len} tokens leaves no room "
            "for an answer",
            400, "context_length_exceeded", "messages",
        )  # fmt: skip

    def _count(self, call: Call) -> None:
        answer = call.answer
        fresh_before = call.parent.dialogue.fresh_renderings if call.parent else 0
        self.counts += Counter(
            response_tokens=len(call.turn.response_ids),
            tool_calls=len(answer.calls),
            malformed_calls=answer.malformed,
            cut_responses=answer.finish == "length",
            edited_histories=call.edited,
            fresh_renderings=call.dialogue.fresh_renderings - fresh_before,
            branches=bool(call.parent and call.parent.extended),
        )


def _for_template(message: dict[str, Any]) -> dict[str, Any]:
    """As the renderer takes messages: what an assistant thought stands in its content, where the template finds and may drop
    it."""
    reasoning = message.get("reasoning")
    plain = {name: value for name, value in message.items() if name != "reasoning"}
    return plain | {"content": f"<think>\n{reasoning}\n</think>\n\n{message['content']}"} if reasoning else plain
