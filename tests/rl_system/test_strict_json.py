"""What JSON lacks never reaches a file, and nothing that a run writes goes around the one writer."""

import ast
import enum
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.strict_json import MAX_DEPTH, to_json, write_json

ROOT = Path(__file__).parents[2]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def no_repeats(pairs: list[tuple]) -> dict:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def read_strictly(text: str) -> object:
    """As a reader would that takes RFC 8259 at its word and numbers as 64 bits."""
    text.encode("utf-8")
    assert len(text.splitlines()) == 1

    def number(digits: str) -> int:
        assert -(1 << 63) <= int(digits) < 1 << 64  # with a sign or without
        return int(digits)

    value = json.loads(text, parse_constant=refuse, parse_int=number, object_pairs_hook=no_repeats)
    json.dumps(value, ensure_ascii=False).encode("utf-8")  # no half of a surrogate pair behind an escape either
    return value


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 3


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (math.nan, None),
        ([math.inf, -math.inf, 0.5], [None, None, 0.5]),
        (np.float32(math.nan), None),
        (np.array([[1.0, math.inf]]), [[1.0, None]]),
        ((np.int64(3), np.bool_(True), np.float64(0.25)), [3, True, 0.25]),
        (10**30, "1" + "0" * 30),
        (-(10**30), "-1" + "0" * 30),
        ([1, 2**64], [1, "18446744073709551616"]),
        ([2**64 - 1, -(2**63)], [2**64 - 1, -(2**63)]),
        ("a\ud835b", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ({"\udc00": "\udfff"}, {"\ufffd": "\ufffd"}),
        ({2: "a", None: "b", True: "c", 2.5: "d", (1, 2): "e", math.nan: "f", np.int64(7): "g", Colour.RED: "h"},
         {"2": "a", "null": "b", "true": "c", "2.5": "d", "(1, 2)": "e", "nan": "f", "7": "g", "red": "h"}),
        ([Colour.RED, Level.LOW, {3}, Path("a/b"), b"x"], ["red", 3, [3], "a/b", "b'x'"]),
        ("line\u2028end\u2029of\x85it\x00", "line\u2028end\u2029of\x85it\x00"),
    ],
)  # fmt: skip
def test_what_json_lacks_is_written_as_what_every_reader_takes(value, read):
    assert read_strictly(to_json(value)) == read


def test_a_number_of_thousands_of_digits_is_told_by_its_size():
    assert read_strictly(to_json([10**6000])) == ["an integer of 19932 bits"]


def test_what_is_nested_too_deeply_is_cut_and_said_so():
    assert read_strictly(to_json(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    text = to_json({"a": nested(100_000)})
    assert read_strictly(text) and "nested too deeply" in text
    loop: list = []
    loop.append(loop)
    assert "nested too deeply" in to_json(loop)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=3) | st.integers(),
                                                                inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(ANYTHING)
def test_whatever_there_is_becomes_one_line_of_strict_json(value):
    assert len(to_json(value).splitlines()) == 1
    json.loads(to_json(value), parse_constant=refuse)
    to_json(value).encode()


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
                    | st.floats(allow_nan=False, allow_infinity=False),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
                    max_leaves=20))  # fmt: skip
def test_what_json_has_comes_back_unchanged(value):
    assert json.loads(to_json(value)) == value


def test_a_file_is_the_old_one_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    write_json(path, {"a": 1})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}


ELSEWHERE = {
    "rl_system/strict_json.py": "the writer itself",
    "rl_system/chat/tool_calls.py": "the text of a call as a model writes it; what was read is checked the same way",
    "rl_system/training/model_files.py": "the header of a safetensors file: names, shapes, offsets",
    "rl_system/training/warm_start.py": "is hashed and written nowhere",
    "rl_system/config/written.py": "words of a command line, of what YAML held",
    "rl_system/viewer/rows.py": "the text that a search looks through",
    "rl_system/endpoint/": "bodies of answers over HTTP, made of decoded tokens and of calls that were checked when read",
    "envs/protocol.py": "the text of a call in a chat message",
    "envs/contract.py": "is tried and written nowhere",
    "envs/adapters/openenv.py": "the text of an observation, for the model",
    "envs/tau2/generated.py": "is hashed and written nowhere",
    "actors/join_trial.py": "two texts for the program that started it; reads no package of this project, as it joins a cluster by itself",
    "launch/bench/support/dialogue.py": "a model's call and a client's request, of an agent that is measured",
    "launch/local_ray.py": "an argument of a command",
    "launch/sweep.py": "arguments of a command",
}
"""Where `json.dumps` may be called, and why none of it is a file or a line that a run writes."""


def test_nothing_that_a_run_writes_goes_around_the_writer():
    found = set()
    for folder in ("rl_system", "actors", "envs", "launch"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = node.func if isinstance(node, ast.Call) else None
                if isinstance(name, ast.Attribute) and name.attr in ("dump", "dumps"):
                    if isinstance(name.value, ast.Name) and name.value.id in ("json", "ujson", "orjson"):
                        found.add(str(path.relative_to(ROOT)))
                if isinstance(node, ast.ImportFrom) and node.module == "json":
                    assert not {each.name for each in node.names} & {"dump", "dumps"}, path
    around = {path for path in found if not path.startswith(tuple(ELSEWHERE))}
    assert around == set(), "write with rl_system.strict_json"
