"""JSON that every reader takes, whatever it is made from.

Everything that a run writes as JSON goes through here: what a model put into an argument, an environment into a tool's
result or a loss into a metric decides neither whether a file can be written nor whether it can be read.

What JSON lacks, or readers in use refuse:

    NaN and infinities                          null
    integers of more than 64 bits               their digits as text; of thousands of digits, their size in words
    half a surrogate pair in a text             U+FFFD, the replacement character
    keys that are no text                       their text
    what is nested deeper than `MAX_DEPTH`      a text that says so
    NumPy numbers and arrays, enumerations      the plain values they stand for; other objects their text
"""

from __future__ import annotations

import enum
import json
import math
import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

MAX_DEPTH = 64
"""Readers give up at 128 (serde) to 1,000 (CPython); what is written here becomes part of something larger."""
WHOLE = range(-(1 << 63), 1 << 64)
"""Integers that fit 64 bits, with a sign or without."""
MAX_DIGIT_BITS = 4096
"""Beyond this an integer's digits are of no use to anybody, and CPython refuses to write them out."""
LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Taken for ends of lines by some that read files line by line; JSON allows their escapes."""


def to_json(value: Any, *, indent: int | None = None) -> str:
    """`value` as one line of JSON, or several where `indent` is given; can always be encoded as UTF-8."""
    separators = (",", ": ") if indent is not None else (", ", ": ")
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    for character, escape in LINE_ENDS.items():
        text = text.replace(character, escape)
    return text


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    """Write `value` as the whole content of `path`, complete or not at all."""
    replace_file(path, to_json(value, indent=indent) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write `text` as the whole content of `path`; whoever opens it finds the old content or the new."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def plain(value: Any, depth: int = 0) -> Any:
    """`value` made of what JSON has: None, bool, int, float, str, list and dict with text as keys."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value, depth)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= MAX_DEPTH:
        return "nested too deeply"
    if isinstance(value, Mapping):
        return {_key(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | Set):
        # Token ids: long, and nothing to change.
        if all(type(each) is int for each in value) and value and min(value) in WHOLE and max(value) in WHOLE:
            return list(value)
        return [plain(each, depth + 1) for each in value]
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return plain(value.tolist(), depth)
    return _text(str(value))


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        # By way of UTF-16, in which two halves that stand beside each other make the character they mean.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str.__str__(value)


def _whole(value: int) -> int | str:
    value = int(value)
    if value in WHOLE:
        return value
    bits = value.bit_length()
    return str(value) if bits <= MAX_DIGIT_BITS else f"an integer of {bits} bits"


def _key(key: Any) -> str:
    if isinstance(key, str | bool | int | enum.Enum) or key is None:
        key = plain(key)
        return key if isinstance(key, str) else json.dumps(key)
    return _text(str(key))
