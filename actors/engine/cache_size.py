"""Whether the K/V cache that the configuration grants holds what the engine promises to serve.

vLLM finds out only after it has loaded the model; here the answer comes from the model's configuration alone.
"""

from __future__ import annotations

from pathlib import Path

from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.training.architecture import read_config

GIB = 2**30
BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2}


def bytes_per_token(model_directory: Path, dtype: str) -> int:
    """Keys and values of one token in all layers."""
    model = read_config(model_directory).get_text_config()
    heads = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
    head_size = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    return 2 * model.num_hidden_layers * heads * head_size * BYTES_OF_DTYPE[dtype]


def require_cache(model_directory: Path, config: RunConfig) -> None:
    """Raise UserError unless the dtype is served and one sequence of `model.max_model_len` tokens fits the cache."""
    if config.model.dtype not in BYTES_OF_DTYPE:
        raise UserError(
            f"model.dtype is {config.model.dtype!r}, which the rollout engine cannot compute in; use "
            f"{' or '.join(BYTES_OF_DTYPE)}"
        )
    granted = config.rollout.engine.kv_cache_gib
    needed = bytes_per_token(model_directory, config.model.dtype) * config.model.max_model_len / GIB
    needed /= config.rollout.engine.tensor_parallel
    if granted is not None and granted < needed:
        raise UserError(
            f"rollout.engine.kv_cache_gib is {granted}, but one sequence of model.max_model_len "
            f"{config.model.max_model_len} tokens takes {needed:.2f} GiB of keys and values; grant at least that, "
            f"better many times as much (rollout.engine.max_num_seqs is {config.rollout.engine.max_num_seqs}), or "
            "shorten model.max_model_len"
        )
