"""The rollout worker: a vLLM engine behind a Ray actor. Token ids in, token ids and logprobs out.

Owns one engine on one accelerator. What it promises about versions and weight swaps is in `actors.engine.session`; here
the data comes out of the object store and goes back into it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ray

from actors.engine.environment import prepare_process
from rl_system.config.run import RunConfig
from rl_system.records import Turn, Weights


@ray.remote
class RolloutWorker:
    """Serves the policy `version` in `model_directory` (a Hugging Face model directory) from the constructor on.

    `index` tells the workers of a run apart; workers with the same one sample the same random numbers.
    """

    def __init__(self, model_directory: str, config: RunConfig, version: int, index: int = 0) -> None:
        prepare_process(config)
        # vLLM reads its environment variables when it is imported: not before the line above.
        from actors.engine.session import EngineSession

        self._config = config
        self._session = EngineSession(Path(model_directory), config, version, index)

    async def ready(self) -> int:
        """Return the policy version once the engine serves it: the worker's heartbeat, where it is asked every now and
        then. Raises EngineBroken from when it no longer can.
        """
        await self._session.label()
        self._session.require_alive()
        return self._session.version

    async def generate(
        self,
        prompt_ids: np.ndarray,
        max_new_tokens: int,
        temperature: float | None = None,
        prefix: Turn | None = None,
        seed: int | None = None,
    ) -> Turn:
        """Sample one response to `prompt_ids` (int32 [prompt]), ended by a stop token or `max_new_tokens`.

        temperature: that of the configuration where None; 0 takes the likeliest token. prefix: a turn on this prompt
        that another worker handed over, to be ended here; its tokens count. seed: of the response's random numbers, the
        same for a prefix and its rest; None: whatever comes next. Raises PromptTooLong, RequestFailed, EngineBroken.
        Cancelling the call takes the request out of the engine. A turn on which the engine works for longer than
        `rollout.request_timeout_s` comes back as it stands, with finish reason `handover.OVERDUE`.
        """
        if temperature is None:
            temperature = self._config.rollout.sampling.temperature
        return await self._session.generate(prompt_ids, max_new_tokens, temperature, prefix, seed)

    async def hand_over(self) -> int:
        """End all turns where they are, for another worker to go on with. Returns how many.

        Call it when no new ones are sent here any more. The turns come back with finish reason `handover.ABORTED`.
        """
        return await self._session.hand_over()

    async def update_weights(self, weights: Weights) -> dict[str, float]:
        """Swap to `weights`, all or nothing, with requests in flight kept. Returns `version`, `seconds`, `paused_s`, and
        `bytes`, what was fetched: chunks that the engine holds already are not.

        Raises WeightsRejected where the worker goes on with its old version, EngineBroken where it has to be replaced.
        """
        if weights.directory:
            return await self._session.load_directory(Path(weights.directory), weights.version)
        return await self._session.load_chunks(weights.chunks, weights.version, weights.checksum)

    async def join_broadcast(self, init_info: dict[str, Any]) -> None:
        """The first of the calls of an update by broadcast, all made by `actors.engine.broadcast`."""
        await self._session.join_broadcast(init_info)

    async def begin_broadcast(self) -> None:
        await self._session.begin_broadcast()

    async def receive_broadcast(self, update_info: dict[str, Any]) -> None:
        await self._session.receive_broadcast(update_info)

    async def end_broadcast(self, version: int) -> dict[str, float]:
        return await self._session.end_broadcast(version)

    async def abandon_broadcast(self) -> None:
        await self._session.abandon_broadcast()

    async def prompt_logprobs(self, token_ids: np.ndarray) -> np.ndarray:
        """float32 [tokens]: the engine's logprob of each token given those before it, at temperature 1; 0 at 0."""
        return await self._session.prompt_logprobs(token_ids)

    async def statistics(self) -> dict[str, Any]:
        """Totals since the start: see `EngineUsage.report`."""
        return self._session.statistics()

    async def close(self) -> None:
        """Stop the engine. Requests still in it fail."""
        await self._session.close()
