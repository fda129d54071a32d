"""Options that benchmarks of the executor share, and the model they describe."""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from launch.command import seed, whole
from rl_system.algorithms import make_objective, registry
from rl_system.algorithms.objective import Objective
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.errors import UserError

SIZES = {"hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 768}
SHORT_NAMES = {"ppo": "ppo_clip"}


def names(text: str) -> list[str]:
    return text.split(",")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    for name, default in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=whole(at_least=1), default=default)
    parser.add_argument("--seed", type=seed(), default=0, help="of the model's random parameters")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=whole(at_least=1), default=1)


def random_model(options: argparse.Namespace, vocabulary: int, positions: int, dtype: str) -> PreTrainedModel:
    """A Llama with random parameters, of the sizes in `options`."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device is cuda, but torch sees no CUDA device here; use --device cpu")
    if options.heads % options.kv_heads:
        raise UserError(f"--heads is {options.heads}, no multiple of --kv-heads {options.kv_heads}, which they share")
    if options.head_dim % 2:
        raise UserError(f"--head-dim is {options.head_dim}; rotary positions need an even one")
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=options.head_dim,
        intermediate_size=options.ffn,
        max_position_embeddings=positions,
    )
    # Parameters are drawn in float32, so that models of all dtypes are the same up to rounding.
    return AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype)).to(options.device)


def objective(name: str, entropy_coefficient: float = 0.0) -> Objective:
    """By its configuration name, or `ppo` for short."""
    name = SHORT_NAMES.get(name, name)
    if name not in registry.names("objectives"):
        raise UserError(f"--objective is {name!r}; use one of {', '.join(registry.names('objectives'))}")
    return make_objective(AlgorithmConfig(objective=name, entropy_coefficient=entropy_coefficient))
