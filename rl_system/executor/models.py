"""Which models the executors run, and how they are told to attend.

A prefix tree needs plain causal softmax attention over the whole context. A model with anything else is refused here,
by name, rather than trained wrongly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from rl_system.errors import UserError
from rl_system.executor.precision import full_precision
from rl_system.tree.cost_model import ModelShape

SUPPORTED = ("llama", "qwen2", "qwen3", "mistral", "qwen3_moe")

DROPOUTS = ("attention_dropout", "attn_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "dropout")


def check_supported(model: PreTrainedModel) -> None:
    """Raise `UserError` unless every layer of `model` is plain causal attention without dropout."""
    config = model.config
    if config.model_type not in SUPPORTED:
        raise UserError(
            f"model.path holds a model of type {config.model_type!r}, which the prefix-tree executor does not run; "
            f"supported are {', '.join(SUPPORTED)}"
        )
    if _windowed(config):
        raise UserError(
            f"model.path holds a {config.model_type} model whose attention is limited to a sliding window "
            f"(sliding_window {config.sliding_window}); a shared prefix would be seen whole. Use a model without a "
            "window, or set sliding_window to null in its config.json if its contexts stay shorter than the window"
        )
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name, None) is not None:
            raise UserError(
                f"model.path holds a model with {name} {getattr(config, name)}; soft-capped logits are not supported, "
                "use a model whose attention is a plain softmax"
            )
    if any(name.endswith("sinks") for name, _ in model.named_parameters()):
        raise UserError(
            "model.path holds a model with attention sinks, which are not supported; use a model whose attention is a "
            "plain softmax over its context"
        )
    for name in DROPOUTS:
        if (getattr(config, name, None) or 0) > 0:
            raise UserError(
                f"model.path holds a model with {name} {getattr(config, name)}; sequences that share a prefix would "
                "need one dropout mask each. Set it to 0 in the model's config.json"
            )
    if model.get_output_embeddings().bias is not None:
        raise UserError("model.path holds a model whose output head has a bias, which is not supported")


def _windowed(config: PreTrainedConfig) -> bool:
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        return True
    return getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)


@contextmanager
def attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """While this is entered, the model attends through the registered implementation `name`, at its own precision."""
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        with full_precision(model.dtype):
            yield
    finally:
        model.config._attn_implementation = before


class Started:
    """A moment at which work on a model's device began."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.device = model.device
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def elapsed(self) -> tuple[float, float]:
        """Seconds on the clock since, once the device has done what it was asked for, and seconds of work: on CPU what this
        process spent, which other processes do not disturb."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        wall = time.perf_counter() - self.wall
        return wall, time.process_time() - self.cpu if self.device.type == "cpu" else wall


def model_shape(model: PreTrainedModel) -> ModelShape:
    """What the cost model needs to know before anything was measured."""
    config = model.config
    total = sum(parameter.numel() for parameter in model.base_model.parameters())
    total -= model.get_input_embeddings().weight.numel()
    experts = getattr(config, "num_experts", None)
    if experts:
        expert = 3 * config.hidden_size * config.moe_intermediate_size * config.num_hidden_layers
        total -= expert * (experts - config.num_experts_per_tok)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelShape(
        layer_parameters=total,
        layers=config.num_hidden_layers,
        attention_width=config.num_attention_heads * head_dim,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
    )
