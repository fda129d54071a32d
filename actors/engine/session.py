"""One engine in use: requests, weight swaps and the engine's end, without Ray.

Owns the engine and its policy version. Invariants: a request that was accepted ends with a turn or an exception, also
when the engine breaks under it; swaps run one at a time and in the order they were asked for; a broken session refuses
everything.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
from vllm.v1.engine.exceptions import EngineDeadError

from actors.engine.cache_size import require_cache
from actors.engine.construction import engine_seed, make_engine
from actors.engine.errors import EngineBroken, PromptTooLong, RequestFailed
from actors.engine.gauge import SchedulerGauge
from actors.engine.held_weights import Chunk, HeldWeights
from actors.engine.pulse import EnginePulse
from actors.engine.requests import Answer, EngineRequests
from actors.engine.run_memory import claim_shared_memory, leave_run_directory, run_directory
from actors.engine.sampling import (
    prompt_logprobs_of,
    sampling_parameters,
    scoring_parameters,
    turn_of,
)
from actors.engine.stop_ids import stop_token_ids
from actors.engine.updates import (
    begin_update,
    check_dtypes,
    check_shapes,
    check_sum,
    end_update,
    files_to_load,
    load_files,
    receive_update,
)
from actors.engine.usage import EngineUsage
from actors.engine.weight_file import weight_file
from rl_system.allocation.handover import join_turns, tokens_left, tokens_so_far
from rl_system.config.run import RunConfig
from rl_system.records import Turn, WeightChunk
from rl_system.seeds import seed_of_rest
from rl_system.training.architecture import checked_shapes
from rl_system.training.parameter_files import parameter_files


class EngineSession:
    """An engine serving the model in `model_directory`, which is the policy's `version`. Blocks until it can serve.

    `index` tells the workers of a run apart.
    """

    def __init__(self, model_directory: Path, config: RunConfig, version: int, index: int) -> None:
        require_cache(model_directory, config)
        self.version = version
        self._config = config
        self._shared_memory = run_directory(config.directory)
        self._held = HeldWeights(config.weights.verify)
        self._shapes = checked_shapes(model_directory)
        self._stop_ids = stop_token_ids(model_directory, config.model)
        self._gauge = SchedulerGauge()
        self._engine = make_engine(model_directory, config, engine_seed(config.seed, index, version), self._gauge)
        self._labelled = False
        self._update_lock = asyncio.Lock()
        self._broadcast_began: float | None = None
        self._bytes = sum(path.stat().st_size for path in parameter_files(model_directory))
        """Of all parameters, as they come by broadcast."""
        self.usage = EngineUsage()
        slowest = config.rollout.request_timeout_s
        self._requests = EngineRequests(self._engine, slowest, self.usage)
        self._pulse = EnginePulse(self._engine, slowest)
        self._broken: Exception | None = None
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

    def require_alive(self) -> None:
        """Raises EngineBroken where the engine died or hangs. Meant to be called every now and then: each call asks the
        engine, and looks whether it still owes an answer to an earlier one.
        """
        self._require_whole()
        if self._update_lock.locked():
            return  # it answers after the update, which has a limit of its own
        try:
            self._pulse.feel()
        except EngineBroken as failure:
            self._break(failure)
            raise

    async def generate(
        self,
        prompt_ids: np.ndarray,
        max_new_tokens: int,
        temperature: float,
        prefix: Turn | None = None,
        seed: int | None = None,
    ) -> Turn:
        """Sample one response, or the rest of `prefix`, which counts towards `max_new_tokens`. seed: of the whole response.

        A turn on which the engine works for longer than `rollout.request_timeout_s` comes back as it stands, OVERDUE.
        Raises PromptTooLong, RequestFailed, EngineBroken. Cancelling it takes the request out of the engine.
        """
        if prefix is None:
            return await self._sample(prompt_ids, max_new_tokens, temperature, seed)
        left = tokens_left(prefix, max_new_tokens)
        if left < 1:
            return replace(prefix, finish_reason="length")
        if seed is not None:
            seed = seed_of_rest(seed, len(prefix.response_ids))
        return join_turns(prefix, await self._sample(tokens_so_far(prefix), left, temperature, seed))

    async def hand_over(self) -> int:
        """End all turns where they are: they come back as they stand, ABORTED. Returns how many."""
        return await self._requests.hand_over()

    async def prompt_logprobs(self, token_ids: np.ndarray) -> np.ndarray:
        """float32 [tokens]: the engine's logprob of each token given those before it, at temperature 1; 0 at 0."""
        self._require_fit(len(token_ids), 1)
        return prompt_logprobs_of(await self._request(token_ids, scoring_parameters(), turn=False))

    async def load_chunks(self, chunks: Sequence[WeightChunk], version: int, checksum: str) -> dict[str, float]:
        """Swap to the arrays of `chunks`, the whole model, through a file in shared memory with those that are new here."""
        started = time.monotonic()
        async with self._update_lock:
            missing = self._held.missing(chunks)
            arrived = await asyncio.gather(*(_value_of(chunk.content) for chunk in missing))
            held = await asyncio.to_thread(self._held.after, chunks, arrived)
            arrays = {name: array for chunk in arrived for name, array in chunk.items()}
            check_shapes(held.shapes(), self._shapes)
            check_dtypes(arrays)
            if self._config.weights.verify:
                check_sum(held.checksum(), checksum)
            report = await self._swap_to(arrays, _file_name(missing, version, checksum), version, started)
            self._held = held
            return report | {"bytes": sum(array.nbytes for array in arrays.values())}

    async def load_directory(self, directory: Path, version: int) -> dict[str, float]:
        """Swap to the model in `directory`."""
        started = time.monotonic()
        async with self._update_lock:
            paths = files_to_load(directory, self._shapes)
            report = await self._swap(paths, version, started)
            return report | {"bytes": sum(path.stat().st_size for path in paths)}

    async def join_broadcast(self, init_info: dict[str, Any]) -> None:
        """Enter the trainer's group, in place of an earlier one; see `actors.engine.broadcast`."""
        self._require_whole()
        await self._engine.shutdown_weight_transfer_engine()
        await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info))

    async def begin_broadcast(self) -> None:
        """Pause for an update whose tensors come by broadcast. Other updates wait until `end_broadcast`."""
        await self._update_lock.acquire()
        self._broadcast_began = time.monotonic()
        await self._in_broadcast(begin_update(self._engine))

    async def receive_broadcast(self, update_info: dict[str, Any]) -> None:
        """Take part in the broadcast of the tensors that `update_info` names."""
        await self._in_broadcast(receive_update(self._engine, update_info))

    async def end_broadcast(self, version: int) -> dict[str, float]:
        """Serve what was received, as `version`."""
        await self._in_broadcast(end_update(self._engine, version))
        report = self._swapped(version, self._broadcast_began, self._broadcast_began)
        self._end_of_broadcast()
        return report | {"bytes": self._bytes}

    async def abandon_broadcast(self) -> None:
        """No more of a broadcast will come. If it had begun here, the engine is of no further use."""
        if self._broadcast_began is not None:
            self._break(EngineBroken("a broadcast of weights was given up halfway"))
            self._end_of_broadcast()

    async def _in_broadcast(self, step: Coroutine[Any, Any, None]) -> None:
        """A step of a broadcast. The next one comes from outside: if this one fails, nobody waits for it."""
        try:
            await self._or_break(step, "by broadcast")
        except BaseException:
            self._end_of_broadcast()
            raise

    def _end_of_broadcast(self) -> None:
        if self._broadcast_began is not None:  # else it was given up meanwhile
            self._broadcast_began = None
            self._update_lock.release()

    def statistics(self) -> dict[str, Any]:
        """Totals since the start, and the version that is served."""
        return {"version": self.version, **self.usage.report(), **self._gauge.report(self.usage.requests)}

    async def close(self) -> None:
        """Stop the engine and fail what is still in it. Idempotent."""
        self._break(EngineBroken("the rollout worker was closed"))
        self._pulse.close()
        await asyncio.to_thread(self._engine.shutdown)
        await asyncio.to_thread(leave_run_directory, self._shared_memory, self._config.weights.timeout_s)

    async def _sample(self, prompt_ids: np.ndarray, max_new_tokens: int, temperature: float, seed: int | None) -> Turn:
        self._require_fit(len(prompt_ids), max_new_tokens)
        parameters = sampling_parameters(
            temperature=temperature, max_new_tokens=max_new_tokens, stop_ids=self._stop_ids, seed=seed
        )
        return turn_of(np.asarray(prompt_ids, np.int32), await self._request(prompt_ids, parameters, turn=True))

    async def _swap_to(self, arrays: Chunk, name: str, version: int, started: float) -> dict[str, float]:
        """name: of the file, the same for workers that need the same arrays."""
        if not arrays:
            return await self._swap([], version, started)
        file = weight_file(self._shared_memory, name, arrays, self._config.weights.timeout_s)
        path = await asyncio.to_thread(file.__enter__)
        try:
            return await self._swap([path], version, started)
        finally:
            await asyncio.to_thread(file.__exit__, None, None, None)

    async def _swap(self, paths: list[Path], version: int, started: float) -> dict[str, float]:
        paused = time.monotonic()
        await self._or_break(load_files(self._engine, paths, version), f"to version {version}")
        return self._swapped(version, started, paused)

    async def _or_break(self, step: Coroutine[Any, Any, None], what: str) -> None:
        """Run a step of an update that leaves no way back: if it does not end well, the engine is of no further use."""
        try:
            self._require_whole()
            async with asyncio.timeout(self._config.weights.timeout_s):
                await step
        except Exception as failure:
            self._break(EngineBroken(f"an update {what} did not finish: {failure!r}"))
            raise self._broken from failure
        except asyncio.CancelledError:
            self._break(EngineBroken(f"an update {what} was cancelled"))
            raise
        finally:
            step.close()

    def _swapped(self, version: int, started: float, paused: float) -> dict[str, float]:
        self.version, self._labelled = version, True
        self._held = HeldWeights(self._config.weights.verify)  # unless the caller knows better
        now = time.monotonic()
        self.usage.updated(seconds=now - started, paused=now - paused)
        return {"version": version, "seconds": now - started, "paused_s": now - paused}

    async def _request(self, token_ids: np.ndarray, parameters: SamplingParams, *, turn: bool) -> Answer:
        self._require_whole()
        await self.label()
        try:
            return await self._requests.run(token_ids, parameters, turn=turn)
        except (asyncio.CancelledError, RequestFailed):
            self._require_whole()
            raise
        except EngineDeadError as failure:
            self._break(EngineBroken(f"the engine failed: {failure!r}"))
            raise self._broken from failure

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
        self._requests.cancel_all()


async def _value_of(chunk: Chunk | Awaitable[Chunk]) -> Chunk:
    """The chunk itself, or the one that a reference into the object store stands for: a view of this node's copy."""
    return chunk if isinstance(chunk, Mapping) else await chunk


def _file_name(chunks: Sequence[WeightChunk], version: int, checksum: str) -> str:
    """Identifies the arrays of `chunks`, a part of the weights that `version` and `checksum` stand for."""
    part = zlib.crc32(" ".join(chunk.identity for chunk in chunks).encode())
    return f"{version}-{checksum}-{part:08x}"
