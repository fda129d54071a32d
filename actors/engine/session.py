"""One engine in use: requests, weight swaps and the engine's end, without Ray.

Owns the engine and its policy version. Invariants: a request that was accepted ends with a turn or an exception, also
when the engine breaks under it; swaps run one at a time and in the order they were asked for; a broken session refuses
everything.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from vllm import RequestOutput, SamplingParams, TokensPrompt
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from actors.engine.construction import engine_seed, make_engine
from actors.engine.errors import EngineBroken, PromptTooLong
from actors.engine.gauge import SchedulerGauge
from actors.engine.run_memory import claim_shared_memory, leave_run_directory, run_directory
from actors.engine.sampling import (
    prompt_logprobs_of,
    sampling_parameters,
    scoring_parameters,
    stop_token_ids,
    turn_of,
)
from actors.engine.updates import (
    check_arrays,
    check_shapes,
    check_sum,
    parameter_shapes,
    safetensors_files,
    swap_weights,
)
from actors.engine.usage import EngineUsage
from actors.engine.weight_file import weight_file
from rl_system.config.run import RunConfig
from rl_system.records import Turn


Chunk = Mapping[str, np.ndarray]


class EngineSession:
    """An engine serving the model in `model_directory`, which is the policy's `version`. Blocks until it can serve.

    `index` tells the workers of a run apart.
    """

    def __init__(self, model_directory: Path, config: RunConfig, version: int, index: int) -> None:
        self.version = version
        self._config = config
        self._shared_memory = run_directory(config.directory)
        self._shapes = parameter_shapes(safetensors_files(model_directory))
        self._stop_ids = stop_token_ids(model_directory)
        self._gauge = SchedulerGauge()
        self._engine = make_engine(model_directory, config, engine_seed(config.seed, index, version), self._gauge)
        self._request_ids = itertools.count()
        self._labelled = False
        self._update_lock = asyncio.Lock()
        self._requests: set[asyncio.Task] = set()
        self._broken: Exception | None = None
        self.usage = EngineUsage()
        claim_shared_memory(self._shared_memory, config.weights.timeout_s)

    async def label(self) -> None:
        """Give the engine its first version. Idempotent; nothing is sampled before, and never during a swap."""
        self._require_whole()
        if self._labelled:
            return
        async with self._update_lock:
            if not self._labelled:
                await self._engine.update_weight_version(str(self.version))
                self._labelled = True

    async def generate(self, prompt_ids: np.ndarray, max_new_tokens: int, temperature: float) -> Turn:
        """Sample one response. Raises PromptTooLong, EngineBroken; cancelling it takes the request out of the engine."""
        self._require_fit(len(prompt_ids), max_new_tokens)
        output = await self._request(
            prompt_ids,
            sampling_parameters(temperature=temperature, max_new_tokens=max_new_tokens, stop_ids=self._stop_ids),
        )
        return turn_of(np.asarray(prompt_ids, np.int32), output.outputs[0])

    async def prompt_logprobs(self, token_ids: np.ndarray) -> np.ndarray:
        """float32 [tokens]: the engine's logprob of each token given those before it, at temperature 1; 0 at 0."""
        self._require_fit(len(token_ids), 1)
        return prompt_logprobs_of(await self._request(token_ids, scoring_parameters()))

    async def load_chunks(self, chunks: Sequence[Chunk], version: int, checksum: str) -> dict[str, float]:
        """Swap to the arrays of `chunks` through a file in shared memory."""
        started = time.monotonic()
        arrays = {name: array for chunk in chunks for name, array in chunk.items()}
        check_arrays(arrays, self._shapes)
        if self._config.weights.verify:
            await asyncio.to_thread(check_sum, chunks, checksum)
        async with self._update_lock:
            file = weight_file(self._shared_memory, f"{version}-{checksum}", arrays, self._config.weights.timeout_s)
            path = await asyncio.to_thread(file.__enter__)
            try:
                return await self._swap([path], version, started)
            finally:
                await asyncio.to_thread(file.__exit__, None, None, None)

    async def load_directory(self, directory: Path, version: int) -> dict[str, float]:
        """Swap to the safetensors files in `directory`."""
        started = time.monotonic()
        paths = safetensors_files(directory)
        check_shapes(parameter_shapes(paths), self._shapes)
        async with self._update_lock:
            return await self._swap(paths, version, started)

    def statistics(self) -> dict[str, Any]:
        """Totals since the start, and the version that is served."""
        return {"version": self.version, **self.usage.report(), **self._gauge.report(self.usage.requests)}

    async def close(self) -> None:
        """Stop the engine and fail what is still in it. Idempotent."""
        self._break(EngineBroken("the rollout worker was closed"))
        await asyncio.to_thread(self._engine.shutdown)
        await asyncio.to_thread(leave_run_directory, self._shared_memory, self._config.weights.timeout_s)

    async def _swap(self, paths: list[Path], version: int, started: float) -> dict[str, float]:
        self._require_whole()
        paused = time.monotonic()
        try:
            async with asyncio.timeout(self._config.weights.timeout_s):
                await swap_weights(self._engine, paths, version)
        except (EngineBroken, TimeoutError, asyncio.CancelledError) as failure:
            self._break(EngineBroken(f"loading version {version} did not finish: {failure!r}"))
            if isinstance(failure, asyncio.CancelledError):
                raise
            raise self._broken from failure
        self.version, self._labelled = version, True
        now = time.monotonic()
        self.usage.updated(seconds=now - started, paused=now - paused)
        return {"version": version, "seconds": now - started, "paused_s": now - paused}

    async def _request(self, token_ids: np.ndarray, parameters: SamplingParams) -> RequestOutput:
        self._require_whole()
        await self.label()
        request = asyncio.ensure_future(self._run(token_ids, parameters))
        self._requests.add(request)
        self.usage.request_started()
        try:
            async with asyncio.timeout(self._config.rollout.request_timeout_s):
                output = await request
        except asyncio.CancelledError:
            request.cancel()
            self._require_whole()
            raise
        except TimeoutError:
            limit = self._config.rollout.request_timeout_s
            self._break(EngineBroken(f"a request took over rollout.request_timeout_s {limit} s"))
            raise self._broken from None
        except (EngineDeadError, EngineGenerateError) as failure:
            self._break(EngineBroken(f"the engine failed: {failure!r}"))
            raise self._broken from failure
        finally:
            self._requests.discard(request)
            self.usage.request_ended()
        self.usage.request_finished(
            prompt_tokens=len(token_ids),
            cached_prompt_tokens=output.num_cached_tokens or 0,
            generated_tokens=len(output.outputs[0].token_ids),
        )
        return output

    async def _run(self, token_ids: np.ndarray, parameters: SamplingParams) -> RequestOutput:
        prompt = TokensPrompt(prompt_token_ids=np.asarray(token_ids).tolist())
        async for output in self._engine.generate(prompt, parameters, str(next(self._request_ids))):
            last = output
        return last

    def _require_fit(self, prompt: int, new: int) -> None:
        limit = self._config.model.max_model_len
        if prompt < 1 or new < 1 or prompt + new > limit:
            raise PromptTooLong(
                f"{prompt} prompt tokens and up to {new} new ones do not fit model.max_model_len {limit}"
            )

    def _require_whole(self) -> None:
        if self._broken is None and self._engine.errored:
            self._break(EngineBroken("the engine's process died"))
        if self._broken is not None:
            raise self._broken

    def _break(self, reason: Exception) -> None:
        self._broken = self._broken or reason
        for request in self._requests:
            request.cancel()
