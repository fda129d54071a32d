"""Tiny language models, built in milliseconds."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_model(
    vocabulary: int, *, dtype: torch.dtype = torch.float64, hidden: int = 32, layers: int = 2, seed: int = 0
) -> LlamaForCausalLM:
    """A Llama with two query heads to a key head; head size 8."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 8, num_key_value_heads=hidden // 16, head_dim=8, max_position_embeddings=256,
        tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)
