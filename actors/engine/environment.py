"""The process environment that vLLM has to find when it is imported.

Owns the environment variables of a rollout worker. vLLM, OpenMP and torch read them once, at import, and the engine's
own process inherits them, so they are set before the first import of either and never after.
"""

from __future__ import annotations

import os

from rl_system.config.run import RunConfig

QUIET = "WARNING"
"""vLLM writes dozens of lines a start at its own default level."""


def environment_variables(config: RunConfig) -> dict[str, str]:
    """Variables of a rollout worker's process. Values that a person already set win where they are harmless."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", QUIET),
        # Of libraries below vLLM, about what this environment does not have and does not need.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore::FutureWarning"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if config.model.device == "cpu":
        threads = str(config.rollout.engine.threads)
        variables |= {
            # The model runs in the engine's process itself, not in one more process behind shared-memory queues.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
        }
    return variables


def prepare_process(config: RunConfig) -> None:
    """Set `environment_variables` in this process. Call it before vLLM is imported."""
    os.environ.update(environment_variables(config))
