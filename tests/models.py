"""Tiny models that the system treats like any other, with the small model's real tokenizer and chat template."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rl_system.config.model import ModelConfig
from rl_system.training.loading import load_tokenizer
from rl_system.training.prepared import prepare_model

SMALL_MODEL = "smollm2-135m-instruct"


def save_tiny_chat_model(directory: Path, *, seed: int = 0, kv_heads: int = 1) -> Path:
    """A random Llama of 3 million parameters with tied embeddings in `directory`, in Hugging Face layout."""
    prepare_model(SMALL_MODEL)
    tokenizer = load_tokenizer(ModelConfig(path=SMALL_MODEL))
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=kv_heads,
            head_dim=32,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
