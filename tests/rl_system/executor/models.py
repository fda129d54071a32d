"""Small random models of every supported family."""

from __future__ import annotations

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.rl_system.trees import VOCABULARY

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
}
FAMILIES = {
    "llama": lambda: LlamaConfig(**SIZES),
    "llama_tied_with_biases": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=None),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1
    ),
}


def small_model(family: str = "llama", dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    torch.manual_seed(0)
    # The grouped kernels of mixtures of experts know no float64.
    return AutoModelForCausalLM.from_config(FAMILIES[family](), experts_implementation="eager").to(dtype)
