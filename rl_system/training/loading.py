"""A model and its tokenizer, from a directory to something that trains."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rl_system.config.model import ModelConfig
from rl_system.errors import UserError
from rl_system.training.finite import is_finite
from rl_system.training.parameter_files import only_parameter_files
from rl_system.training.prepared import model_directory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
TEMPLATES = Path(__file__).parent.parent / "chat" / "templates"
"""Chat templates by tool format, for models that bring none."""


def load_model(config: ModelConfig) -> PreTrainedModel:
    """The causal language model of `config.path` in the compute dtype, on its device, dropout off.

    Evaluation mode also in training: with dropout the probability ratio of a token would not be 1 on its own policy.
    Raises UserError for a path, context length or device that cannot work, and for missing parameters, which
    transformers would fill with random numbers.
    """
    directory = model_directory(config.path)
    check_context(config, directory)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("model.device is 'cuda', but torch sees no CUDA device here; use 'cpu' or a machine with one")
    with only_parameter_files(directory) as files:
        model, loading = AutoModelForCausalLM.from_pretrained(
            files, dtype=DTYPES[config.dtype], output_loading_info=True, local_files_only=True
        )
    if missing := sorted(loading["missing_keys"]):
        raise UserError(
            f"model.path {config.path!r} lacks {len(missing)} parameters of its architecture ({missing[0]}, …); "
            "give a directory with the complete model"
        )
    if broken := sorted(name for name, parameter in model.named_parameters() if not is_finite(parameter)):
        raise UserError(
            f"model.path {config.path!r} holds {len(broken)} parameters with values that are not finite ({broken[0]}, …), "
            "such as a training that diverged leaves; give a whole model"
        )
    return model.eval().to(config.device)


def check_context(config: ModelConfig, directory: Path) -> None:
    """UserError where `model.max_model_len` is longer than the positions that the model knows."""
    positions = getattr(AutoConfig.from_pretrained(directory, local_files_only=True), "max_position_embeddings", None)
    if positions is not None and config.max_model_len > positions:
        raise UserError(
            f"model.max_model_len is {config.max_model_len}, but {config.path!r} knows {positions} positions; "
            f"use at most {positions}"
        )


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of `config.path`, always with a chat template.

    The template is `config.chat_template` where given, else the model's own, else that of `config.tool_format`.
    """
    tokenizer = AutoTokenizer.from_pretrained(model_directory(config.path), local_files_only=True)
    if config.chat_template is not None:
        try:
            tokenizer.chat_template = Path(config.chat_template).read_text()
        except OSError as error:
            raise UserError(f"model.chat_template {config.chat_template!r} cannot be read: {error.strerror}") from None
    elif tokenizer.chat_template is None:
        template = TEMPLATES / f"{config.tool_format}.jinja"
        if not template.is_file():
            raise UserError(
                f"model.path {config.path!r} has no chat template, and there is none for model.tool_format "
                f"{config.tool_format!r}; give one in model.chat_template"
            )
        tokenizer.chat_template = template.read_text()
    return tokenizer
