"""From what pydantic found wrong to what a person is told: the field in full, its value, and what would be right."""

from __future__ import annotations

import difflib
import typing
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from rl_system.config.written import Written, is_nothing

LONGEST_VALUE = 80
EXPECTED = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "string_type": "text",
    "path_type": "a path",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "names with a value each",
    "too_short": "at least {min_length} of them",
}
"""What a field expects, by pydantic's type of error."""


def explain(error: ErrorDetails, root: type[BaseModel]) -> str:
    """One mistake in values for `root`, in half a sentence."""
    name = dotted(error["loc"])
    if error["type"] == "extra_forbidden":
        return _explain_unknown(name, error, root)
    if error["type"] == "missing":
        return f"{name} is missing and has no default"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"{name} is {shown(error['input'])}; {_expected(error)}"


def dotted(place: tuple[int | str, ...]) -> str:
    """A place in nested sections as the command line names it, printable whatever the keys are."""
    name = ".".join(part for part in map(str, place) if part != "[key]")
    return name if name.isprintable() else repr(name)


def shown(value: Any) -> str:
    """A value for a message: one line, and not too long."""
    if is_nothing(value):
        return "empty"
    plain = isinstance(value, Written) and value.isprintable() and not set(value) & set(" ',;")
    text = str(value) if plain else repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 10]}…{text[-9:]}"


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


def _explain_unknown(name: str, error: ErrorDetails, root: type[BaseModel]) -> str:
    *sections, key = map(str, error["loc"])
    if "." in key:
        path = [*sections, *key.split(".")]
        nested = "".join(f"{part}: {{" for part in path[:-1]) + f"{path[-1]}: …" + "}" * (len(path) - 1)
        return f"{key} is a key with a dot, as the command line has them; in a file write sections: {nested}"
    known = field_names(root)
    elsewhere = [each for each in known if each.rpartition(".")[2] == key]
    close = elsewhere if len(elsewhere) == 1 else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(each for each in known if '.' not in each)}"
    return f"{name} is {shown(error['input'])}, but there is no such key; {hint}"


def _expected(error: ErrorDetails) -> str:
    if error["type"] in EXPECTED:
        return "expected " + EXPECTED[error["type"]].format(**error.get("ctx", {}))
    return f"{error['msg'][0].lower()}{error['msg'][1:]}"
