"""The requests in one engine: each comes to its own end, is handed back where it stands, or fails.

Owns what is in flight. How long the engine takes for a request counts from its first token on: until then it waits for its
turn, and how many others are before it says nothing about the engine. One that takes too long is taken out and handed
back with the tokens that it has: others go on beside it, and whoever asked goes on from there.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from vllm import RequestOutput, SamplingParams, TokensPrompt
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineGenerateError

from actors.engine.errors import RequestFailed
from actors.engine.usage import EngineUsage


@dataclass(frozen=True, slots=True)
class Answer:
    """parts: what the engine gave, in order; the last one is final. overdue: whether it took too long for all of it."""

    parts: Sequence[RequestOutput]
    overdue: bool = False


class EngineRequests:
    """limit_s: longest that `engine` may take for one request from its first token on."""

    def __init__(self, engine: AsyncLLM, limit_s: float, usage: EngineUsage) -> None:
        self._engine, self._limit_s, self._usage = engine, limit_s, usage
        self._ids = itertools.count()
        self._in_flight: dict[str, asyncio.Future[Answer]] = {}
        self._turns: set[str] = set()
        """Requests that another engine could go on with."""

    async def run(self, token_ids: np.ndarray, parameters: SamplingParams, *, turn: bool) -> Answer:
        """Carry a request out. turn: whether it may be handed back unfinished.

        Raises RequestFailed, EngineDeadError, and CancelledError where the caller, or `cancel_all`, gave up on it; then it
        is taken out of the engine.
        """
        request_id = str(next(self._ids))
        request = asyncio.ensure_future(self._outputs(token_ids, parameters, request_id, turn))
        self._in_flight[request_id] = request
        if turn:
            self._turns.add(request_id)
        self._usage.request_started()
        try:
            answer = await request
        except asyncio.CancelledError:
            request.cancel()
            raise
        except EngineGenerateError as failure:
            raise RequestFailed(f"the engine could not carry out a request: {failure.__cause__!r}") from failure
        finally:
            del self._in_flight[request_id]
            self._turns.discard(request_id)
            self._usage.request_ended()
        self._usage.request_finished(
            prompt_tokens=len(token_ids),
            cached_prompt_tokens=answer.parts[-1].num_cached_tokens or 0,
            generated_tokens=sum(len(part.outputs[0].token_ids) for part in answer.parts),
        )
        return answer

    async def hand_over(self) -> int:
        """End all turns where they are. Returns how many."""
        turns = sorted(self._turns)
        await self._engine.abort(turns)
        return len(turns)

    def cancel_all(self) -> None:
        """Give up on everything in flight."""
        for request in self._in_flight.values():
            request.cancel()

    async def _outputs(
        self, token_ids: np.ndarray, parameters: SamplingParams, request_id: str, turn: bool
    ) -> Answer:
        prompt = TokensPrompt(prompt_token_ids=np.asarray(token_ids).tolist())
        outputs = self._engine.generate(prompt, parameters, request_id)
        parts: list[RequestOutput] = []
        overdue, due = False, None
        waiting: asyncio.Future[RequestOutput] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(anext(outputs))
                left = None if due is None or overdue else max(due - time.monotonic(), 0.0)
                done, _ = await asyncio.wait({waiting}, timeout=left)
                if not done:
                    overdue = True
                    await self._engine.abort(request_id)
                    continue
                parts.append(waiting.result())
                waiting = None
                if turn and due is None:
                    due = time.monotonic() + self._limit_s
        except StopAsyncIteration:
            return Answer(parts, overdue)
        finally:
            if waiting is not None:
                waiting.cancel()
