"""One engine in use: requests, weight swaps and the engine's end, without Ray.

Owns the engine and its policy version. Invariants: a request that was accepted ends with a turn or an exception, also
when the engine breaks under it; swaps run one at a time and in the order they were asked for; a broken session refuses
everything.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from vllm import RequestOutput, SamplingParams, TokensPrompt

from actors.engine.construction import engine_seed, make_engine
from actors.engine.errors import EngineBroken, PromptTooLong
from actors.engine.sampling import (
    prompt_logprobs_of,
    sampling_parameters,
    scoring_parameters,
    stop_token_ids,
    turn_of,
)
from actors.engine.updates import check_arrays, check_shapes, parameter_shapes, safetensors_files, swap_weights
from actors.engine.usage import EngineUsage
from actors.engine.weight_file import run_directory, weight_file
from rl_system.config.run import RunConfig
from rl_system.records import Turn


class EngineSession:
    """An engine serving the model in `model_directory`, which is the policy's `version`. Blocks until it can serve.

    `index` tells the workers of a run apart.
    """

    def __init__(self, model_directory: Path, config: RunConfig, version: int, index: int) -> None:
        self.version = version
        self._config = config
        self._shapes = parameter_shapes(safetensors_files(model_directory))
        self._stop_ids = stop_token_ids(model_directory)
        self._engine = make_engine(model_directory, config, engine_seed(config.seed, index, version))
        self._request_ids = itertools.count()
        self._labelled = False
        self._update_lock = asyncio.Lock()
        self._requests: set[asyncio.Task] = set()
        self._broken: Exception | None = None
        self.usage = EngineUsage()

    async def label(self) -> None:
        """Give the engine its first version. Idempotent; nothing is sampled before."""
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

    async def load_arrays(self, arrays: Mapping[str, np.ndarray], version: int, name: str) -> dict[str, float]:
        """Swap to `arrays` through a file in shared memory. `name` tells them from other updates of this run."""
        check_arrays(arrays, self._shapes)
        directory, timeout = run_directory(self._config.directory), self._config.weights.timeout_s
        started = time.monotonic()
        async with self._update_lock:
            file = weight_file(directory, name, arrays, timeout)
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
        return {"version": self.version, **self.usage.report()}

    async def close(self) -> None:
        """Stop the engine and fail what is still in it."""
        self._break(EngineBroken("the rollout worker was closed"))
        await asyncio.to_thread(self._engine.shutdown)

    async def _swap(self, paths: list[Path], version: int, started: float) -> dict[str, float]:
        self._require_whole()
        paused = time.monotonic()
        try:
            async with asyncio.timeout(self._config.weights.timeout_s):
                await swap_weights(self._engine, paths, version)
        except TimeoutError:
            self._break(EngineBroken(f"loading version {version} took over {self._config.weights.timeout_s} s"))
            raise self._broken from None
        except EngineBroken as broken:
            self._break(broken)
            raise
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
            raise EngineBroken(f"a request took over rollout.request_timeout_s {limit} s") from None
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
        if self._broken is not None:
            raise self._broken

    def _break(self, reason: Exception) -> None:
        self._broken = self._broken or reason
        for request in self._requests:
            request.cancel()
