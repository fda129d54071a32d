"""Small models and batches whose every number is made in float64 from a seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rl_system.records import Sequence, TrainBatch

VOCABULARY = 48


def make_model(dtype: torch.dtype = torch.float64, *, tied: bool = True, seed: int = 0) -> LlamaForCausalLM:
    """A Llama of two layers with grouped-query heads."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def make_batch(sequences: int = 6, *, seed: int = 0, prefix: int = 12, tail: int = 10) -> TrainBatch:
    """Sequences that share a prompt of `prefix` tokens; groups of two; weights add up to 1 (token mean)."""
    generator = np.random.default_rng(seed)
    prompt = generator.integers(3, VOCABULARY, prefix)
    made = []
    for index in range(sequences):
        ids = np.concatenate([prompt, generator.integers(3, VOCABULARY, tail + index % 3)])
        trained = np.arange(len(ids)) >= prefix
        made.append(
            Sequence(
                token_ids=ids.astype(np.int32),
                trained=trained,
                behaviour_logprobs=np.where(trained, generator.normal(-3, 0.3, len(ids)), 0).astype(np.float32),
                versions=np.where(trained, 0, -1).astype(np.int32),
                advantages=np.where(trained, generator.normal(), 0).astype(np.float32),
                weights=trained.astype(np.float64),
            )
        )
    batch = TrainBatch.of(made, [index // 2 for index in range(sequences)])
    batch.weights /= batch.weights.sum()
    return batch


@pytest.fixture
def model() -> LlamaForCausalLM:
    return make_model()


@pytest.fixture
def batch() -> TrainBatch:
    return make_batch()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of one word per id of the vocabulary."""
    words = Tokenizer(WordLevel({f"w{index}": index for index in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", pad_token="w2", unk_token="w0")
