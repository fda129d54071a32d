from pathlib import Path

import pytest

from actors.engine.cache_size import bytes_per_token, require_cache
from rl_system.config.run import RunConfig
from rl_system.errors import UserError


def config(**engine: object) -> RunConfig:
    return RunConfig.model_validate({"name": "cache", "model": {"max_model_len": 1024}, "rollout": {"engine": engine}})


def test_a_token_takes_its_keys_and_values_in_every_layer(tiny_model_directory: Path) -> None:
    layers, kv_heads, head_size = 2, 2, 32
    assert bytes_per_token(tiny_model_directory, "float32") == 2 * layers * kv_heads * head_size * 4
    assert bytes_per_token(tiny_model_directory, "bfloat16") == 2 * layers * kv_heads * head_size * 2


def test_a_cache_smaller_than_the_longest_sequence_is_a_users_error(tiny_model_directory: Path) -> None:
    longest_gib = 1024 * 1024 / 2**30
    require_cache(tiny_model_directory, config(kv_cache_gib=longest_gib))
    with pytest.raises(UserError, match=r"rollout\.engine\.kv_cache_gib is 0\.0009"):
        require_cache(tiny_model_directory, config(kv_cache_gib=0.0009))


def test_a_dtype_that_no_engine_serves_is_a_users_error(tiny_model_directory: Path) -> None:
    run = RunConfig.model_validate({"name": "cache", "model": {"dtype": "float64"}})
    with pytest.raises(UserError, match=r"model\.dtype is 'float64'"):
        require_cache(tiny_model_directory, run)
