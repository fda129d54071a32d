"""Tiny models that the system treats like any other, with the small model's real tokenizer and chat template."""

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from rl_system.config.model import ModelConfig
from rl_system.training.loading import load_tokenizer
from rl_system.training.prepared import prepare_model

SMALL_MODEL = "smollm2-135m-instruct"

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
"""With the hidden size, heads of 32: the least that vLLM's kernels take on CPUs."""
WIDE_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
"""Heads that are together twice as wide as the hidden size."""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}

FAMILIES: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama": lambda **more: LlamaConfig(**SIZES, **WIDE_HEADS, attention_bias=True, mlp_bias=True, **more),
    "qwen2": lambda **more: Qwen2Config(**SIZES, **HEADS, tie_word_embeddings=True, **more),
    "qwen3": lambda **more: Qwen3Config(**SIZES, **WIDE_HEADS, tie_word_embeddings=True, **more),
    "qwen3_moe": lambda **more: Qwen3MoeConfig(**SIZES, **WIDE_HEADS, **EXPERTS, **more),
    "mistral": lambda **more: MistralConfig(**SIZES, **WIDE_HEADS, sliding_window=None, **more),
}
"""Every family that can be trained, by model type: with and without biases, norms of heads, tied embeddings."""


def save_tiny_chat_model(directory: Path, *, seed: int = 0, kv_heads: int = 1) -> Path:
    """A random Llama of 3 million parameters with tied embeddings in `directory`, in Hugging Face layout."""
    config = LlamaConfig(
        **SIZES, num_attention_heads=2, num_key_value_heads=kv_heads, head_dim=32, tie_word_embeddings=True, **_tokens()
    )
    torch.manual_seed(seed)
    return _save(AutoModelForCausalLM.from_config(config), directory)


def save_tiny_family(family: str, directory: Path, *, seed: int = 0) -> Path:
    """A random model of `family` in `directory`. What starts at 0 or 1 everywhere (biases, norms) is random too."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(FAMILIES[family](**_tokens()))
    disturb(model)
    return _save(model, directory)


def disturb(model: PreTrainedModel, scale: float = 0.05, *, only: str = "") -> None:
    """Add random numbers to all parameters whose names contain `only`."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.add_(scale * torch.randn_like(parameter))


def _tokens() -> dict[str, int]:
    prepare_model(SMALL_MODEL)
    tokenizer = load_tokenizer(ModelConfig(path=SMALL_MODEL))
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _save(model: PreTrainedModel, directory: Path) -> Path:
    model.save_pretrained(directory)
    load_tokenizer(ModelConfig(path=SMALL_MODEL)).save_pretrained(directory)
    return directory
