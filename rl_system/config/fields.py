"""What a value becomes in a field of a certain type, wherever it came from: a file, the command line, Python.

One rule for all fields. Text stays text, to the letter, where a field wants text or one of several words. Numbers are
written in decimal (or as 0x…), with or without `_` and an exponent; a whole number may be written as 3, 3.0 or 3e0, in quotes or
not, but never as 3.7. Truth is no number. Every number is finite, also in the 32 bits that models compute in.
"""

from __future__ import annotations

import enum
import math
import re
import types
import typing
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic_core import PydanticCustomError

from rl_system.config.paths import absolute
from rl_system.config.written import Written, is_nothing

WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
LARGEST = 2**63 - 1
LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
DECIMAL = re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(e[-+]?[0-9]+)?")
PREFIXED = re.compile(r"([-+]?)0(x_*[0-9a-f][0-9a-f_]*|b_*[01][01_]*)")
TWO_WAYS = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-5]?[0-9])+)")
"""YAML 1.1 reads 010 as 8 and 1:30 as 90, YAML 1.2 does not."""
NOT_FINITE = re.compile(r"[-+]?\.?(inf|infinity|nan)")

Seed = Annotated[int, Field(ge=0, le=LARGEST)]
"""Of a random generator: what NumPy, torch and vLLM all take."""


class Wrong(PydanticCustomError):
    """A value that its field cannot take; the message says what the field expects."""

    def __new__(cls, expected: str) -> Wrong:
        return super().__new__(cls, "wrong_value", "{expected}", {"expected": expected})


def settle(value: Any, hint: Any) -> Any:
    """`value` as a field of type `hint` takes it. What needs no rule of its own is left to pydantic. Raises Wrong."""
    wanted = _members(hint)
    if value is None:
        return None
    if isinstance(value, Written):
        if is_nothing(value) and type(None) in wanted:
            return None
        if _wants_text(wanted):
            if not value:
                raise Wrong("expected text, which is missing")
            return _text(str(value), wanted)
        if value.structure is not None:
            return settle(value.structure, hint)
    if _wants_text(wanted):
        return _text(value, wanted) if isinstance(value, str | PurePath) else value
    if isinstance(value, str) and any(each in wanted for each in (bool, int, float)):
        return _parsed(value.strip(), wanted)
    if isinstance(value, int | float) and (int in wanted or float in wanted):
        return _checked(value, wanted)
    return _settle_members(value, wanted)


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that `hint` allows, without annotations."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _members(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(each for part in typing.get_args(hint) for each in _members(part))
    return (hint,)


def _wants_text(wanted: tuple[Any, ...]) -> bool:
    return any(
        typing.get_origin(each) is Literal or (isinstance(each, type) and issubclass(each, str | PurePath | enum.Enum))
        for each in wanted
    )


def _text(text: str | PurePath, wanted: tuple[Any, ...]) -> str | Path:
    try:
        str(text).encode()
    except UnicodeEncodeError:
        raise Wrong("expected text in UTF-8") from None
    if not any(isinstance(each, type) and issubclass(each, PurePath) for each in wanted):
        return text
    try:
        return absolute(text)
    except ValueError as error:
        raise Wrong(str(error)) from None


def _parsed(text: str, wanted: tuple[Any, ...]) -> bool | int | float:
    low = text.lower()
    if bool in wanted:
        if low not in WORDS:
            raise Wrong("expected true or false")
        return WORDS[low]
    if TWO_WAYS.fullmatch(low):
        raise Wrong("expected a number in plain decimal digits: this one is not the same to every reader of YAML")
    if NOT_FINITE.fullmatch(low):
        return _checked(math.nan, wanted)
    if prefixed := PREFIXED.fullmatch(low):
        return _checked(int(prefixed[1] + "0" + prefixed[2].replace("_", ""), 0), wanted)
    if not DECIMAL.fullmatch(low):
        raise Wrong("expected a whole number" if int in wanted else "expected a number")
    plain = low.replace("_", "")
    try:
        return _checked(int(plain), wanted)
    except ValueError:
        return _checked(float(plain), wanted)


def _checked(value: int | float, wanted: tuple[Any, ...]) -> int | float:
    if isinstance(value, bool):
        if bool in wanted:
            return value
        raise Wrong("expected a whole number" if float not in wanted else "expected a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise Wrong("expected a finite number" if float in wanted else "expected a whole number, which is finite")
    if float in wanted:
        if abs(value) > LARGEST_FLOAT32:
            raise Wrong(f"expected a number that 32 bits hold, at most {LARGEST_FLOAT32:.4g}")
        return value
    if value != int(value):
        raise Wrong("expected a whole number")
    if abs(value) > LARGEST:
        raise Wrong(f"expected a whole number that 64 bits hold, at most {LARGEST}")
    return int(value)


def _settle_members(value: Any, wanted: tuple[Any, ...]) -> Any:
    for each in wanted:
        origin, inner = typing.get_origin(each), typing.get_args(each)
        if isinstance(each, type) and issubclass(each, BaseModel) and not isinstance(value, dict | each):
            raise Wrong(_section_expected(each))
        if origin is tuple and not isinstance(value, list | tuple):
            raise Wrong("expected a list")
        if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
            return [settle(item, inner[0]) for item in value]
        if origin is dict:
            if not isinstance(value, dict):
                raise Wrong("expected names with a value each")
            return {key: settle(item, inner[1]) for key, item in value.items()}
    return value


def _section_expected(section: type[BaseModel]) -> str:
    return f"expected a section with keys such as {', '.join(list(section.model_fields)[:3])}"
