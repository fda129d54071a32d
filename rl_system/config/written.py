"""YAML as a person wrote it: plain words keep their letters until it is known what their field wants.

YAML reads `off` as false, `007` as 7 and `2026-01-01` as a date, whatever the field is. Here such words arrive as
`Written`, and the field decides (`rl_system.config.fields`). Nothing is read twice, shared or guessed: a key that stands
twice in a section is an error, and what an anchor repeats is a copy.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

MOST_VALUES = 100_000
"""Of one file. Anchors that repeat anchors make more of a few lines than fits any memory."""
STRING, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null", "timestamp", "value")}
NOTHING = ("", "~", "null", "Null", "NULL")
"""Plain words for no value, where a field may have none."""
SURROGATE = re.compile("[\ud800-\udfff]")


class Written(str):
    """The letters of a plain word, without quotes, of which YAML would make something else than text.

    structure: the mapping or list that the letters also stand for, on a command line; None: they stand for a word.
    """

    __slots__ = ("structure",)

    def __new__(cls, text: str, structure: dict[str, Any] | list[Any] | None = None) -> Written:
        self = super().__new__(cls, text)
        self.structure = structure
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.structure


def is_nothing(value: Any) -> bool:
    """Whether `value` is None, or a plain word for it."""
    return value is None or (isinstance(value, Written) and value in NOTHING)


class Unreadable(Exception):
    """Why a text is not the YAML of a configuration, in words; with its line where there is one."""


def read_document(text: str) -> Any:
    """dict, list, str or `Written`, or None for an empty document. Raises Unreadable."""
    node = _compose(text)
    return None if node is None else _Reader().value(node)


def read_word(text: str) -> str:
    """One value of a command line: the letters as they are, unless all of it stands in quotes, which are YAML's then.
    Raises Unreadable only for a mapping or list whose keys stand twice.
    """
    try:
        node = _compose(text)
    except Unreadable:
        return Written(text)
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style in ("'", '"') else Written(text)
    return Written(text) if node is None else Written(text, _Reader().value(node))


def as_word(value: Any) -> str:
    """The command-line word that `read_word` reads as `value`, which came from `read_document`."""
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {as_word(each) or 'null'}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_word(each) or "null" for each in value) + "]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)


def _compose(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(f"line {line} holds the character {chr(error.character)!r}, which YAML does not allow") from None
    except yaml.MarkedYAMLError as error:
        raise Unreadable(_explain(error)) from None
    except RecursionError:
        raise Unreadable("it nests too deeply") from None


def _explain(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    what = " ".join(" ".join(filter(None, (error.context, error.problem))).split())
    if "'\\t'" in what:
        what = "a tab, where YAML wants spaces"
    return f"line {mark.line + 1}: {what}" if mark else what


class _Reader:
    def __init__(self) -> None:
        self._count = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node) -> Any:
        self._count += 1
        if self._count > MOST_VALUES:
            raise Unreadable(f"it stands for more than {MOST_VALUES} values")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self._open:
            raise Unreadable(f"{_line(node)}: an anchor that contains itself")
        if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise Unreadable(f"{_line(node)}: the tag {node.tag!r}, which has no meaning here")
        self._open.add(id(node))
        try:
            return self._mapping(node) if isinstance(node, yaml.MappingNode) else [self.value(each) for each in node.value]
        except RecursionError:
            raise Unreadable("it nests too deeply") from None
        finally:
            self._open.remove(id(node))

    def _scalar(self, node: yaml.ScalarNode) -> str:
        if node.tag == STRING or node.style in ("'", '"', "|", ">"):
            return _whole(node)
        if node.tag not in SCALARS | {MERGE}:
            raise Unreadable(f"{_line(node)}: the tag {node.tag!r}, which has no meaning here")
        return Written(node.value)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Unreadable(f"{_line(key)}: a key that is no single word")
            name, line = _whole(key), key.start_mark.line + 1
            if name in lines:
                where = f"lines {lines[name]} and {line}" if line != lines[name] else f"line {line}"
                raise Unreadable(f"the key {name!r} stands twice, in {where}; one of them has to go")
            lines[name] = line
            if key.tag == MERGE:
                for each in reversed(value.value if isinstance(value, yaml.SequenceNode) else [value]):
                    if not isinstance(each, yaml.MappingNode):
                        raise Unreadable(f"{_line(key)}: '<<' takes a section, or a list of sections")
                    merged |= self.value(each)
            else:
                values[name] = self.value(value)
        return merged | values


def _whole(node: yaml.ScalarNode) -> str:
    """The text of a word in which JSON's escapes for one character in two halves are put together."""
    if not SURROGATE.search(node.value):
        return node.value
    try:
        return node.value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise Unreadable(f"{_line(node)}: half of a character") from None


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
