"""A model as a directory in Hugging Face layout, which `from_pretrained` and vLLM load as it is."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rl_system.chat.template import end_of_turn_id
from rl_system.errors import UserError
from rl_system.origin import said
from rl_system.strict_json import write_json
from rl_system.training.architecture import CONFIG_FILE, GENERATION_FILE
from rl_system.training.parameter_files import INDEX_FILE, SINGLE_FILE, parameter_files
from rl_system.training.parameter_names import under_saved_names
from rl_system.training.tensor_parallel import Sharding
from rl_system.training.weights import as_chunks, own_tensors, saved_tensors

FILE_BYTES = 4 << 30
"""Larger models are cut into several files, so that readers can take one at a time."""
SAFETENSORS_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""numpy's name of a dtype (bfloat16: that of ml_dtypes) to that of the file format."""


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write configuration, parameters in the model's dtype, and tokenizer with its chat template into `directory`.

    tensors: what `saved_tensors` gave, where it was asked before.
    """
    save_description(model, tokenizer, directory)
    save_parameters(saved_tensors(model) if tensors is None else tensors, directory)


def save_description(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write all of a model but its parameters into `directory`: configuration, generation defaults and tokenizer.

    Whatever could be loaded is written as it was, also what transformers itself refuses to write (generation defaults
    that contradict each other). The end of turn of the tokenizer's template is added to the tokens that end a text, so
    that whoever serves the model stops where it was trained to.
    """
    config = json.loads(model.config.to_json_string())
    config.pop("transformers_weights", None)  # a file of the directory that it was loaded from
    write_json(directory / CONFIG_FILE, config, indent=2)
    generation: dict[str, Any] = {}
    if model.generation_config is not None:
        generation = json.loads(model.generation_config.to_json_string(keys_to_pop=["compile_config"]))
    save_generation_defaults(generation, tokenizer, directory)
    tokenizer.save_pretrained(directory)


def save_generation_defaults(values: dict[str, Any], tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write generation defaults, as JSON has them, with the end of turn of the tokenizer's template among the ends."""
    stated = values.get("eos_token_id")
    ends = stated if isinstance(stated, list) else [] if stated is None else [stated]
    end_of_turn = end_of_turn_id(tokenizer)
    if end_of_turn is not None and end_of_turn not in ends:
        ends = [*ends, end_of_turn]
    if ends:
        values = values | {"eos_token_id": ends if len(ends) > 1 else ends[0]}
    write_json(directory / GENERATION_FILE, values, indent=2)


def check_saving(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Prove that `save_description` of these works, and that what it writes can be read. Raises UserError where not."""
    with tempfile.TemporaryDirectory(prefix="saving-") as folder:
        try:
            save_description(model, tokenizer, Path(folder))
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            again = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # Whatever transformers makes of what it loaded from somebody else's files.
            raise UserError(
                "model.path: the model's configuration or tokenizer cannot be saved and loaded again, which a checkpoint "
                f"needs ({said(error)}); save them anew with save_pretrained, without custom code"
            ) from None
    if again.get_vocab() != tokenizer.get_vocab() or bool(again.chat_template) != bool(tokenizer.chat_template):
        raise UserError(
            "model.path: the model's tokenizer is another one when it is saved and loaded again, which a checkpoint needs; "
            "give it as one that transformers saves (tokenizer.json)"
        )


def save_parameters(tensors: Mapping[str, torch.Tensor], directory: Path) -> None:
    """Write what `saved_tensors` gave as `model.safetensors`, or as several files with an index."""
    sizes = [t.numel() * t.element_size() for t in tensors.values()]
    chunks = as_chunks(tensors, FILE_BYTES)
    if sum(sizes) <= FILE_BYTES:
        write_safetensors(directory / SINGLE_FILE, next(chunks))
        return
    written: list[list[str]] = []
    for index, chunk in enumerate(chunks):
        write_safetensors(directory / f"part-{index}", chunk)
        written.append(list(chunk))
    weight_map = {}
    for index, names in enumerate(written):
        file = f"model-{index + 1:05d}-of-{len(written):05d}.safetensors"
        (directory / f"part-{index}").rename(directory / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
    write_json(directory / INDEX_FILE, index, indent=2)


def load_parameters(model: torch.nn.Module, directory: Path) -> None:
    """Copy the parameters that `save_parameters` wrote into `model`, in place; a rank that shares the model, its share.

    Raises UserError unless names and shapes are exactly the model's.
    """
    expected, sharding = under_saved_names(own_tensors(model)), Sharding.of(model)
    found: set[str] = set()
    for path in parameter_files(directory):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a dict)
                tensor = sharding.share(name, file.get_tensor(name))
                if name not in expected or tensor.shape != expected[name].shape:
                    raise UserError(f"{path} holds {name} {list(tensor.shape)}, which the configured model has not")
                expected[name].copy_(tensor)
                found.add(name)
    if missing := sorted(expected.keys() - found):
        raise UserError(f"{directory} lacks {len(missing)} parameters of the configured model ({missing[0]}, …)")


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` to a safetensors file, one at a time and without a second copy in memory.

    The format: length of the header (8 bytes), JSON header padded to 8 bytes, raw data in the header's order.
    """
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
