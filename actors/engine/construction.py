"""Building the engine from a run's configuration.

Owns the mapping from our configuration to vLLM's arguments. The engine samples from the full distribution and reports
logprobs of exactly that distribution (after the temperature), so that the trainer can compute the same numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from vllm import AsyncEngineArgs
from vllm.config import WeightTransferConfig
from vllm.utils.async_utils import cancel_task_threadsafe
from vllm.v1.engine.async_llm import AsyncLLM

from actors.engine import weight_transfer
from actors.engine.gauge import SchedulerGauge
from rl_system.config.run import RunConfig
from rl_system.training.parameter_files import only_parameter_files

GIB = 2**30

CPU_BLOCK_TOKENS = 32
"""Granularity of the prefix cache on CPUs. A turn computes again what does not fill a block: with vLLM's own 128, as
many tokens as a short answer has. 32 is the least that its kernels are optimised for."""


class Engine(AsyncLLM):
    """vLLM's engine, which its session ends."""

    def shutdown(self, timeout: float | None = None) -> None:
        # vLLM ends its processes first, and where whoever reads their outputs notices, it takes that for a failure.
        if (reader := getattr(self, "output_handler", None)) is not None:
            cancel_task_threadsafe(reader)
        super().shutdown(timeout)

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ends():  # what it needs to end itself is taken apart with the interpreter, this module's names as well
            super().__del__()


def engine_arguments(model_directory: Path, config: RunConfig, seed: int) -> dict[str, Any]:
    """Keyword arguments of vLLM's engine for the model in `model_directory`."""
    engine = config.rollout.engine
    arguments: dict[str, Any] = {
        "model": str(model_directory),
        "dtype": config.model.dtype,
        "max_model_len": config.model.max_model_len,
        # Rounding depends on the rows that are computed together: where it must not, a request is computed alone and whole.
        "max_num_seqs": 1 if config.deterministic else engine.max_num_seqs,
        "seed": seed,
        "enforce_eager": engine.enforce_eager,
        "enable_prefix_caching": not config.deterministic,
        # Tokens in, tokens out: nothing is tokenised or detokenised here.
        "skip_tokenizer_init": True,
        # A model's generation_config.json may set top_p or top_k, which would change the distribution unseen.
        "generation_config": "vllm",
        # Logprobs of the distribution that was sampled from, after the temperature.
        "logprobs_mode": "processed_logprobs",
        "weight_transfer_config": WeightTransferConfig(backend=weight_transfer.backend_of(config.weights.transport)),
        "worker_extension_cls": f"{weight_transfer.__name__}.WorkerExtension",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if engine.kv_cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(engine.kv_cache_gib * GIB)
    if config.model.device == "cpu":
        arguments["block_size"] = CPU_BLOCK_TOKENS
    else:
        arguments["gpu_memory_utilization"] = engine.gpu_memory_utilization
        arguments["tensor_parallel_size"] = engine.tensor_parallel
    return arguments


def make_engine(model_directory: Path, config: RunConfig, seed: int, gauge: SchedulerGauge) -> AsyncLLM:
    """Start an engine that reports to `gauge`, and wait until it can serve. Blocks for seconds to minutes."""
    with only_parameter_files(model_directory) as directory:
        arguments = AsyncEngineArgs(**engine_arguments(directory, config, seed))
        return Engine.from_engine_args(arguments, stat_loggers=[gauge])


def engine_seed(seed: int, worker: int, version: int) -> int:
    """The sampler's seed: another one for every worker, and for a worker that is started again later in the run.

    Engines with one seed draw the same numbers, so members of a group that sit on different workers would be copies.
    """
    return int(np.random.SeedSequence([seed, worker, version]).generate_state(1)[0] >> 1)
