"""From a YAML file and command-line overrides to a checked `RunConfig`.

Every mistake becomes a `UserError` of one paragraph that names the field in full, the value and what would be right.
"""

from __future__ import annotations

import difflib
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rl_system.config.run import RunConfig
from rl_system.errors import UserError


def load_config(path: Path, overrides: list[str] = ()) -> RunConfig:
    """Read `path` and apply `overrides`, a flat list `--section.key value …`."""
    return build_config(read_yaml(path) | {}, overrides, source=str(path))


def build_config(values: dict[str, Any], overrides: list[str] = (), source: str = "configuration") -> RunConfig:
    for key, value in parse_overrides(overrides).items():
        _assign(values, key, value)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{source}: " + "; ".join(_explain(each) for each in error.errors())) from None


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise UserError(f"configuration {path} cannot be read: {error.strerror}") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"configuration {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"configuration {path} holds no sections; expected keys such as name, model, rollout")
    return values


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """`--a.b 1 --c=x` to `{"a.b": 1, "c": "x"}`; values are read as YAML."""
    result: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise UserError(f"{word!r} stands where an option is expected; overrides are written --section.key value")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not rest:
                raise UserError(f"--{key} has no value; overrides are written --section.key value")
            text = rest.pop(0)
        try:
            result[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            result[key] = text
    return result


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for depth, parent in enumerate(parents):
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            name = ".".join(parents[: depth + 1])
            raise UserError(f"--{key}: {name} is a single value ({values!r}), not a section")
    values[last] = value


def _explain(error: dict[str, Any]) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, field_names(RunConfig), n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else "see configs/ for the keys there are"
        return f"{name} is not a configuration key (value {error['input']!r}); {hint}"
    if error["type"] == "missing":
        return f"{name} is missing and has no default"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"{name} is {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"


def field_names(section: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key below `section`, dotted, sections included."""
    names = []
    for name, info in section.model_fields.items():
        names.append(prefix + name)
        kinds = (info.annotation, *typing.get_args(info.annotation))
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                names += field_names(kind, f"{prefix}{name}.")
    return names
