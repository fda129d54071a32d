"""Which files of a model directory hold the model's parameters.

Other safetensors files may lie beside them: the model again in its maker's own format (`consolidated.safetensors`), an
adapter, what an earlier save left. Everybody who reads, loads, counts or compares parameters asks here, so that trainers
and engines can never disagree.

The index decides where there is one, else it is `model.safetensors`: the two names under which models are saved.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from rl_system.errors import UserError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FORMAT = "*.safetensors"

FLOATING = ("F64", "F32", "F16", "BF16")
"""The format's names of the dtypes that can be trained from."""

Shapes = dict[str, tuple[int, ...]]


def parameter_files(directory: Path) -> list[Path]:
    """The files that hold the parameters of the model in `directory`, sorted. Raises UserError where one is missing."""
    files = named_files(directory)
    missing = [file for file in files if not file.is_file()]
    if not missing:
        return files
    if (directory / INDEX_FILE).is_file():
        raise UserError(f"{directory / INDEX_FILE} names {missing[0].name}, which is not there; give the whole model")
    if (directory / SINGLE_FILE).is_symlink() or (directory / SINGLE_FILE).exists():
        kind = "a directory" if (directory / SINGLE_FILE).exists() else "a link to a file that is not there"
        raise UserError(f"{directory / SINGLE_FILE} is {kind}; give the whole model")
    others = ", ".join(sorted(file.name for pattern in (FORMAT, "*.bin", "*.gguf") for file in directory.glob(pattern)))
    raise UserError(
        f"{directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}{f', only {others}' if others else ''}; save the model's "
        "parameters in that format (save_pretrained does)"
    )


def named_files(directory: Path) -> list[Path]:
    """The files that ought to hold the parameters, there or not, sorted. Raises UserError for an index that is none."""
    index = directory / INDEX_FILE
    if not index.is_file():
        return [directory / SINGLE_FILE]
    try:
        content = json.loads(index.read_text())
    except (OSError, ValueError) as error:
        raise _no_index(index, f"it cannot be read: {error}") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _no_index(index, 'it has no "weight_map"')
    files = set(map(str, weight_map.values()))
    if any(Path(file).name != file for file in files):  # vLLM would not find them
        raise _no_index(index, "its weight_map does not name files beside it")
    whole = all((directory / file).is_file() for file in files)
    if whole and not isinstance(content.get("metadata"), dict):  # transformers insists on it
        raise _no_index(index, 'it has no "metadata"')
    return sorted(directory / file for file in files)


def _no_index(path: Path, why: str) -> UserError:
    return UserError(
        f"{path} is no index of safetensors files, {why}; give the whole model, or remove the index where all parameters "
        f"are in {SINGLE_FILE}"
    )


def tensor_shapes(files: Iterable[Path]) -> Shapes:
    """Name and shape of every tensor in safetensors `files`. Raises UserError for one that is not whole."""
    shapes: Shapes = {}
    for path in files:
        try:
            with safe_open(path, framework="np") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{path} is not a whole safetensors file ({error}); fetch or save the model again"
            ) from None
    return shapes


def count_parameters(directory: Path) -> int:
    """Of the model in `directory`, by the headers of its files."""
    return sum(map(math.prod, tensor_shapes(parameter_files(directory)).values()))


def check_floating(files: Iterable[Path]) -> None:
    """UserError for a tensor of whole safetensors `files` whose numbers mean something only with a scale beside them."""
    for path in files:
        with safe_open(path, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a dict)
                if (dtype := tensors.get_slice(name).get_dtype()) not in FLOATING:
                    raise UserError(
                        f"model.path {path} holds {name} as {dtype}, which cannot be trained; give the model in one of "
                        f"{', '.join(FLOATING)}"
                    )


@contextmanager
def only_parameter_files(directory: Path) -> Iterator[Path]:
    """The model in `directory` without safetensors files that are none of its own, for readers that take what they find.

    vLLM prefers `consolidated.safetensors` to the others, or reads all there are; transformers prefers `model.safetensors`
    to an index. Where nothing is in the way this is `directory` itself: engines remember compiled graphs by its name.
    """
    own = parameter_files(directory)
    if {file.name for file in directory.glob(FORMAT)} <= {file.name for file in own}:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        for entry in directory.iterdir():
            if entry.suffix != ".safetensors" or entry in own:
                os.symlink(entry.resolve(), Path(folder) / entry.name)
        yield Path(folder)
