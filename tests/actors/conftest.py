"""A tiny model with tied embeddings, and a local Ray for the actors under test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from actors.cluster import SLOT
from actors.connection import private_cluster
from rl_system.config.run import RunConfig

VOCABULARY = 512
STOP_ID = 2


@pytest.fixture(scope="session")
def tiny_model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with tied embeddings and the smallest head size that vLLM's CPU kernels take."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=STOP_ID,
        initializer_range=0.05,
    )
    directory = tmp_path_factory.mktemp("tiny_model")
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def rollout_config(tiny_model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "rollout-test",
            "output": tmp_path_factory.mktemp("runs"),
            "model": {"path": str(tiny_model_directory), "max_model_len": 1024},
            "rollout": {"engine": {"kv_cache_gib": 0.25, "max_num_seqs": 16}, "request_timeout_s": 60},
            "weights": {"timeout_s": 60},
        }
    )


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    # Ray kills actors when the whole machine runs low on memory, whoever uses it: not tested here, and it makes tests fail
    # on a busy machine.
    settings = {"_system_config": {"memory_monitor_refresh_ms": 0}, "resources": {SLOT: 4}}
    with private_cluster(num_cpus=4, log_to_driver=False, **settings):
        yield
