"""From a YAML file and command-line overrides to a checked `RunConfig`.

Every mistake becomes a `UserError` of one paragraph that says where it was made, names the field in full, the value and what
would be right. Of an option that is given several times the last one counts; a key that stands twice in a file is an error.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rl_system.config.explain import LONGEST_VALUE, dotted, explain, field_names, shown
from rl_system.config.run import RunConfig
from rl_system.config.written import Unreadable, Written, read_document, read_word
from rl_system.errors import UserError

MOST_BYTES = 1 << 20
"""Of a configuration file; one has a few thousand."""
OPTION = re.compile(r"--[A-Za-z_]")

Root = TypeVar("Root", bound=BaseModel)


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read `path` and apply `overrides`, a flat list `--section.key value …`."""
    return build_config(read_yaml(path), overrides, source=str(path))


def build_config(values: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "configuration") -> RunConfig:
    """source: where `values` come from, for messages."""
    overridden, given = copy.deepcopy(dict(values)), parse_overrides(overrides)
    for key, value in given.items():
        _assign(overridden, key, value)
    try:
        return check(RunConfig, overridden, source, given)
    except UserError as error:
        if given and str(error).startswith(f"{source}: ") and _is_right(values):
            options = " ".join(_option(key, value) for key, value in given.items())
            raise UserError(f"{source} with {options}{str(error)[len(source) :]}") from None
        raise


def _is_right(values: Mapping[str, Any]) -> bool:
    try:
        RunConfig.model_validate(values)
    except ValidationError:
        return False
    return True


def check(root: type[Root], values: Mapping[str, Any], source: str, overrides: Mapping[str, str] | None = None) -> Root:
    """`values` as a `root`. Mistakes in what `overrides` set are told as theirs, others as those of `source`."""
    try:
        return root.model_validate(values)
    except ValidationError as error:
        found: dict[str, list[str]] = {}
        for each in error.errors():
            text = explain(each, root)
            found.setdefault(_place(each, text, source, overrides or {}), []).append(text)
        raise UserError("; ".join(f"{place}: {'; '.join(texts)}" for place, texts in found.items())) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys of a YAML file; see `rl_system.config.written` for their values."""
    path = Path(path)
    try:
        with path.open("rb") as file:  # also of a pipe, which has no size
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise Unreadable(f"it is larger than {MOST_BYTES >> 20} MiB, which no configuration is")
        values = read_document(content.decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"configuration {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"configuration {path} is not UTF-8: byte {content[error.start]:#04x} in line {line}; save it as UTF-8"
        ) from None
    except Unreadable as error:
        raise UserError(f"configuration {path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"configuration {path} holds no sections; expected keys such as name, model, rollout")
    return values


def parse_overrides(arguments: Sequence[str]) -> dict[str, str]:
    """`--a.b 1 --c=x` to `{"a.b": "1", "c": "x"}`; see `rl_system.config.written.read_word` for the values."""
    result: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise UserError(f"{word!r} stands where an option is expected; overrides are written --section.key value")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not rest or OPTION.match(rest[0]):
                raise UserError(
                    f"--{key} has no value; overrides are written --section.key value, or --section.key=value where the "
                    "value begins with --"
                )
            text = rest.pop(0)
        if not all(key.split(".")):
            raise UserError(f"--{key} names no key; overrides are written --section.key value")
        result.pop(key, None)  # the last one counts, also for what it replaces
        try:
            result[key] = read_word(text)
        except Unreadable as error:
            raise UserError(f"--{key}: {error}") from None
    return result


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    """A mapping for a section sets the keys that it names, and no others."""
    keys = _keys(value)
    if keys is not None and any(name.startswith(f"{key}.") for name in field_names(RunConfig)):
        for name, each in keys.items():
            _assign(values, f"{key}.{name}", each)
        return
    *parents, last = key.split(".")
    for depth, parent in enumerate(parents):
        section = _keys(values.setdefault(parent, {}))
        if section is None:
            name = ".".join(parents[: depth + 1])
            raise UserError(f"--{key}: {name} is a single value ({shown(values[parent])}), not a section")
        values[parent] = values = section
    values[last] = value


def _keys(value: Any) -> dict[str, Any] | None:
    """Of a section or mapping, also as a word of the command line; None where it is something else."""
    keys = value.structure if isinstance(value, Written) else value
    return keys if isinstance(keys, dict) else None


def _place(error: ErrorDetails, text: str, source: str, overrides: Mapping[str, str]) -> str:
    """Where a mistake was made: in the override that set its field, or in those that `text` about a section names."""
    name = dotted(error["loc"])
    for key, value in overrides.items():
        below = error["type"] != "value_error" and name and key.startswith(f"{name}.")
        if below or (name and f"{name}.".startswith(f"{key}.")):
            return _option(key, value)
    named = [
        _option(key, value)
        for key, value in overrides.items()
        if key.startswith(f"{name}." if name else "") and re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text)
    ]
    return " with ".join([source, " ".join(named)]) if named else source


def _option(key: str, value: str) -> str:
    plain = value.isprintable() and " " not in value and 0 < len(value) <= LONGEST_VALUE
    return f"--{key} {value if plain else shown(str(value))}"
