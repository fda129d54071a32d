"""A model and its tokenizer, from a directory to something that trains."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rl_system.chat.renderer import Renderer
from rl_system.chat.template import end_of_turn_id, read_template
from rl_system.config.model import ModelConfig
from rl_system.errors import UserError
from rl_system.origin import said
from rl_system.training.architecture import checked_shapes, eos_ids, read_config
from rl_system.training.finite import is_finite
from rl_system.training.json_object import read_object
from rl_system.training.parameter_files import only_parameter_files
from rl_system.training.prepared import model_directory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""JSON files that a tokenizer may have."""
TEMPLATES = Path(__file__).parent.parent / "chat" / "templates"
"""Chat templates by tool format, for models that bring none."""


def load_model(config: ModelConfig) -> PreTrainedModel:
    """The causal language model of `config.path` in the compute dtype, on its device, dropout off.

    Evaluation mode also in training: with dropout the probability ratio of a token would not be 1 on its own policy.
    Raises UserError for a path, context length or device that cannot work, and for files that do not hold the parameters
    of the architecture: transformers would fill missing ones with random numbers.
    """
    directory = model_directory(config.path)
    check_context(config, directory)
    checked_shapes(directory)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("model.device is 'cuda', but torch sees no CUDA device here; use 'cpu' or a machine with one")
    with only_parameter_files(directory) as files:
        model = AutoModelForCausalLM.from_pretrained(
            files, dtype=DTYPES[config.dtype], local_files_only=True, trust_remote_code=False
        )
    if broken := sorted(name for name, parameter in model.named_parameters() if not is_finite(parameter)):
        raise UserError(
            f"model.path {config.path!r} holds {len(broken)} parameters with values that are not finite ({broken[0]}, …), "
            "such as a training that diverged leaves; give a whole model"
        )
    return model.eval().to(config.device)


def check_context(config: ModelConfig, directory: Path) -> None:
    """UserError where `model.max_model_len` is longer than the positions that the model knows."""
    positions = getattr(read_config(directory), "max_position_embeddings", None)
    if positions is not None and config.max_model_len > positions:
        raise UserError(
            f"model.max_model_len is {config.max_model_len}, but {config.path!r} knows {positions} positions; "
            f"use at most {positions}"
        )


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of `config.path`, always with a chat template. Raises UserError where there is none.

    The template is `config.chat_template` where given, else the model's own, else that of `config.tool_format`.
    """
    directory = model_directory(config.path)
    for file in TOKENIZER_FILES:
        read_object(directory / file)
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # Whatever transformers makes of files that somebody else wrote.
        raise UserError(
            f"model.path {config.path!r} holds no tokenizer that can be loaded ({said(error)}); give a "
            f"directory with the tokenizer's files ({TOKENIZER_FILES[0]} or the model's own), complete"
        ) from None
    if config.chat_template is not None:
        tokenizer.chat_template = read_template(config.chat_template)
    elif tokenizer.chat_template is None:
        template = TEMPLATES / f"{config.tool_format}.jinja"
        if not template.is_file():
            raise UserError(
                f"model.path {config.path!r} has no chat template, and there is none for model.tool_format "
                f"{config.tool_format!r}; give one in model.chat_template"
            )
        tokenizer.chat_template = template.read_text()
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, size: int, directory: Path) -> None:
    """UserError where text becomes tokens that a model of `size` tokens does not know: it is another model's tokenizer.

    Added tokens that no text and no turn is made of, padding say, may lie beyond.
    """
    ordinary = tokenizer.get_vocab().keys() - {str(token) for token in tokenizer.added_tokens_decoder.values()}
    known = max(map(tokenizer.convert_tokens_to_ids, ordinary), default=-1) + 1
    known = max(known, 1 + (end_of_turn_id(tokenizer) or 0))
    if known > size:
        raise UserError(
            f"model.path {str(directory)!r}: its tokenizer knows {known} tokens, but the model's embedding only {size}; "
            "give the tokenizer that belongs to the model"
        )


def load_renderer(config: ModelConfig) -> Renderer:
    """What the agent loop speaks to the model of `config.path` through, and knows the end of a response by."""
    directory = model_directory(config.path)
    return Renderer(load_tokenizer(config), tool_format=config.tool_format, eos_ids=eos_ids(directory))
