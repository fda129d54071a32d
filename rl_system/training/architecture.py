"""What the files of a model directory describe, found out without loading a parameter.

Files come from other people and other programs. Whatever is wrong with them is told here, by file, before anything
starts; those who come later (trainers, engines) can take a directory that passed for what it says it is.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from rl_system.errors import UserError
from rl_system.origin import said
from rl_system.training.json_object import read_object
from rl_system.training.parameter_files import Shapes, check_floating, parameter_files, tensor_shapes
from rl_system.training.weights import saved_tensors

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
OUTPUT_HEAD = "lm_head.weight"
"""May be in files or not where it is tied to the embedding."""
NOT_PARAMETERS = (r"\.rotary_emb\.inv_freq$",)
"""Patterns of what earlier releases of transformers wrote beside the parameters; it is read by nobody."""


def read_config(directory: Path) -> PreTrainedConfig:
    """The configuration of the model in `directory`. Raises UserError where it is none."""
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # Whatever transformers makes of a file that somebody else wrote.
        raise _not_described(directory, error) from None


def empty_model(directory: Path) -> PreTrainedModel:
    """The model of `directory` without memory for its parameters (on torch's device "meta"), generation defaults included.

    Raises UserError where its files describe none.
    """
    config = read_config(directory)
    if quantization := getattr(config, "quantization_config", None):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise UserError(
            f"model.path {str(directory)!r}: its {CONFIG_FILE} says that the parameters are quantized ({method}), which "
            "cannot be trained; give the model before it was quantized"
        )
    read_object(directory / GENERATION_FILE)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # As above.
        raise _not_described(directory, error) from None
    if (directory / GENERATION_FILE).exists():
        try:
            model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
        except Exception as error:  # As above.
            raise UserError(
                f"model.path {str(directory / GENERATION_FILE)!r} holds no generation defaults that transformers takes "
                f"({said(error)}); mend or remove it"
            ) from None
    return model


def shapes_of(model: PreTrainedModel) -> Shapes:
    """Name and shape of every parameter and saved buffer of `model`, as its files have them."""
    return {name: tuple(tensor.shape) for name, tensor in saved_tensors(model).items()}


def checked_shapes(directory: Path) -> Shapes:
    """`shapes_of` the model in `directory`. Raises UserError unless its files hold just these."""
    model = empty_model(directory)
    files = parameter_files(directory)
    expected, found = shapes_of(model), tensor_shapes(files)
    check_floating(files)
    if missing := sorted(expected.keys() - found.keys()):
        raise UserError(
            f"model.path {str(directory)!r} lacks {len(missing)} parameters of its architecture ({missing[0]}, …); "
            "give a directory with the complete model"
        )
    if reshaped := sorted(name for name in expected if found[name] != expected[name]):
        name = reshaped[0]
        raise UserError(
            f"model.path {str(directory)!r}: {name} has the shape {list(found[name])} in the files, but by {CONFIG_FILE} it "
            f"is {list(expected[name])} ({len(reshaped)} such parameters); give files that belong together"
        )
    ignored = [*NOT_PARAMETERS, *(model._keys_to_ignore_on_load_unexpected or ())]
    unknown = found.keys() - expected.keys() - {OUTPUT_HEAD}
    if unknown := sorted(name for name in unknown if not any(re.search(pattern, name) for pattern in ignored)):
        raise UserError(
            f"model.path {str(directory)!r} holds {len(unknown)} tensors that its architecture has not ({unknown[0]}, …): "
            f"those of a quantized model, of adapters or of other heads cannot be trained, and {CONFIG_FILE} has to name all "
            "layers; give the plain model"
        )
    return expected


def eos_ids(directory: Path) -> set[int]:
    """What the configuration files of the model in `directory` call an end of sequence."""
    found: set[int] = set()
    for name in (GENERATION_FILE, CONFIG_FILE):
        stated = read_object(directory / name).get("eos_token_id")
        ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
        if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
            raise UserError(f"model.path {directory / name} names eos_token_id {stated!r}; token ids are integers")
        found.update(ids)
    return found


def _not_described(directory: Path, error: Exception) -> UserError:
    return UserError(
        f"model.path {str(directory)!r}: its {CONFIG_FILE} describes no model that can be built ({said(error)})"
    )
