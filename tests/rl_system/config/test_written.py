"""Words of a file or a command line reach their fields as they were written, whatever YAML makes of them."""

import json
from pathlib import Path
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from launch.sweep import flags
from rl_system.config.load import build_config, load_config, read_yaml
from rl_system.config.section import Section
from rl_system.config.written import Unreadable, as_word, read_document, read_word
from rl_system.errors import UserError

WORDS = [
    "off", "on", "yes", "no", "Yes", "NO", "true", "False", "null", "Null", "~", "7", "007", "0o17", "1_000", "0x1F", "1e5",
    "1.5", ".5", "1:30", "2026-01-01", "2026-01-01 12:00:00", ".inf", ".nan", "=", "<<", "-1", "y", "n",
]  # fmt: skip


class Pair(Section):
    text: str = ""
    number: float = 1.0


class Example(Section):
    word: Literal["off", "on", "yes", "no", "null", "7", "1e5", "2026-01-01"] = "on"
    text: str = "text"
    maybe: str | None = "text"
    texts: tuple[str, ...] = ()
    named: dict[str, str] = {}
    pairs: tuple[Pair, ...] = ()
    count: int = 1
    counts: tuple[int, ...] = ()
    size: float = 1.0
    sizes: dict[str, float] = {}
    limit: float | None = 1.0
    switch: bool = False


def of(text: str) -> Example:
    return Example.model_validate(read_document(text))


def refusal(**values: object) -> str:
    with pytest.raises(ValidationError) as error:
        Example.model_validate(values)
    return error.value.errors()[0]["msg"]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_yaml_reads_as_something_else_is_text_where_text_is_wanted(word):
    read = of(f"text: {word}\ntexts: [{word}, x]\nnamed: {{k{word}: {word}}}\npairs: [{{text: {word}}}]")
    assert read.text == word and read.texts == (word, "x") and read.named == {f"k{word}": word}
    assert read.pairs[0].text == word and read_document(f"'x': 1\n'{word}': 2") == {"x": "1", word: "2"}


@pytest.mark.parametrize("word", ["off", "on", "yes", "no", "null", "7", "1e5", "2026-01-01"])
def test_a_word_that_yaml_reads_as_something_else_is_one_of_several_words(word):
    assert of(f"word: {word}").word == word
    assert Example(word=read_word(word)).word == word


def test_a_field_that_may_be_empty_takes_a_plain_null_as_nothing_and_a_quoted_one_as_text():
    for nothing in ("null", "~", "", "NULL"):
        assert of(f"maybe: {nothing}").maybe is None and of(f"limit: {nothing}").limit is None
    assert of("maybe: 'null'").maybe == "null" and Example(maybe=read_word("'null'")).maybe == "null"


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("tracking.project", "1e5", "1e5"), ("tracking.project", "off", "off"), ("environment.domain", "no", "no"),
        ("environment.split", "007", "007"), ("name", "7", "7"), ("name", "007", "007"), ("name", "2026-01-01", "2026-01-01"),
        ("allocation.mode", "off", "off"), ("model.path", "1_000", "1_000"), ("evaluation.split", "null", "null"),
    ],
)  # fmt: skip
def test_text_keys_take_such_words_from_a_file_and_from_the_command_line_alike(tmp_path, key, value, wanted):
    def found(config):
        for part in key.split("."):
            config = getattr(config, part)
        return config

    *sections, last = key.split(".")
    path = tmp_path / "run.yaml"
    name = "" if key == "name" else "name: run\n"
    path.write_text(name + "".join(f"{each}:\n  " for each in sections) + f"{last}: {value}\n")
    assert found(load_config(path)) == wanted
    assert found(build_config({"name": "run"}, [f"--{key}", value])) == wanted
    assert found(build_config({"name": "run"}, [f"--{key}={value}"])) == wanted


@given(st.text(min_size=1))
def test_whatever_stands_on_a_command_line_reaches_a_text_field_as_it_is(text):
    """But what is in quotes altogether, which are YAML's: how else would a person write a text null?"""
    if text[0] in "'\"" or text != text.strip():
        text = "a" + text
    assert build_config({"name": "run"}, [f"--tracking.project={text}"]).tracking.project == text


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_whatever_a_file_holds_as_text_arrives_as_that_text(text):
    assert of(yaml.safe_dump({"text": text})).text == text
    assert of("text: " + json.dumps(text)).text == text


@given(st.from_regex(r"[A-Za-z0-9_.+~=-][A-Za-z0-9_.+:/=-]{0,12}[A-Za-z0-9_.+=/-]", fullmatch=True))
def test_a_plain_word_of_a_file_reaches_a_text_field_letter_by_letter(word):
    if word.startswith(("- ", "---", "...")):
        word = "x" + word
    assert of(f"text: {word}").text == word


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3),
        max_leaves=8,
    )
)
def test_a_value_of_a_file_comes_through_a_command_line_unchanged(value):
    read = read_document(yaml.safe_dump({"a": value}))["a"]
    word = read_word(as_word(read))
    assert (word if getattr(word, "structure", None) is None else word.structure) == read


def test_variants_of_a_sweep_reach_their_fields_as_they_were_written():
    keys = read_document(
        "{allocation.mode: off, tracking.project: 007, rollout.engine: {kv_cache_gib: null}, environment.user.model: 'null', "
        "model.path: a 'b' \"c\" # d\n}"
    )
    config = build_config({"name": "run"}, flags(keys))
    assert config.allocation.mode == "off" and config.tracking.project == "007"
    assert config.rollout.engine.kv_cache_gib is None and config.environment.user.model == "null"
    assert config.model.path == "a 'b' \"c\""


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("1e-5", 1e-5), ("1E-5", 1e-5), ("1e5", 1e5), ("1.5e+3", 1500), (".5", 0.5), ("5.", 5), ("+1", 1), ("-1", -1),
        ("1_000", 1000), ("0x10", 16), ("3", 3), ("'3'", 3), ("'1e-5'", 1e-5), ("0", 0), ("0.0", 0),
    ],
)  # fmt: skip
def test_numbers_are_read_in_every_usual_spelling(word, number):
    assert of(f"size: {word}").size == number
    assert Example(size=read_word(word)).size == number


@pytest.mark.parametrize("word", ["3", "3.0", "3e0", "'3'", "+3", "0x3"])
def test_a_whole_number_may_be_written_with_a_point_or_in_quotes(word):
    assert of(f"count: {word}\ncounts: [{word}]").counts == (3,)


@pytest.mark.parametrize("word", ["3.7", "true", "yes", "on", "off", "null", "", "3 4", "three", "1e-5", "2026-01-01", "0o17"])
def test_what_is_no_whole_number_is_refused_for_one(word):
    for text in (f"count: {word}", f"counts:\n- {word}\n"):
        with pytest.raises(ValidationError, match="expected a whole number"):
            of(text)


@pytest.mark.parametrize("word", ["010", "007", "1:30", "-08"])
def test_a_number_that_yaml_1_1_and_1_2_read_differently_is_refused(word):
    for key in ("count", "size"):
        with pytest.raises(ValidationError, match="plain decimal digits"):
            of(f"{key}: {word}")


@pytest.mark.parametrize("word", [".inf", "-.INF", ".nan", "inf", "nan", "Infinity", "1e999"])
def test_a_number_is_finite_wherever_it_stands(word):
    for text in (f"size: {word}", f"limit: {word}", f"sizes: {{a: {word}}}", f"pairs: [{{number: {word}}}]"):
        with pytest.raises(ValidationError, match="finite"):
            of(text)
    for text in (f"size: '{word}'", f"count: {word}"):
        with pytest.raises(ValidationError, match="finite|whole"):
            of(text)


def test_numbers_from_python_obey_the_same_rules():
    assert "finite" in refusal(size=float("nan")) and "finite" in refusal(pairs=[{"number": float("inf")}])
    assert refusal(count=True) == "expected a whole number" and refusal(size=False) == "expected a number"
    assert "64 bits" in refusal(count=2**70) and "32 bits" in refusal(size=1e300) and "32 bits" in refusal(size=10**400)
    assert Example(count=3.0).count == 3 and refusal(count=3.7) == "expected a whole number"


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("ON", True), ("true", True), ("1", True), ("off", False), ("0", False)])
def test_a_switch_takes_the_words_of_yaml(word, value):
    assert of(f"switch: {word}").switch is value


@pytest.mark.parametrize("word", ["2", "y", "maybe", "1.0", "null"])
def test_a_switch_takes_no_other_word(word):
    with pytest.raises(ValidationError, match="expected true or false"):
        of(f"switch: {word}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "the key 'a' stands twice, in lines 1 and 3"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", "the key 'b' stands twice, in lines 2 and 4"),
        ("a: [{b: 1, b: 2}]", "the key 'b' stands twice, in line 1"),
        ("a: &a {b: 1}\nc:\n  <<: *a\n  <<: *a\n", "the key '<<' stands twice"),
        ("a: {\n", "line 2"),
        ("a:\n\tb: 1\n", "line 2: a tab, where YAML wants spaces"),
        ("? [a]\n: 1\n", "line 1: a key that is no single word"),
        ("a: &a [*a]", "line 1: an anchor that contains itself"),
        ("a: *b", "line 1"),
        ("a: !!python/object:os.system x", "python/object"),
        ("<<: 3", "'<<' takes a section"),
        ("a: 1\n---\nb: 2\n", "another document"),
        ("a: \x00", "line 1 holds the character '\\x00'"),
        ("[" * 5000, "nests too deeply"),
        ("\n".join([f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10) if i else 1}]" for i in range(9)]), "more than"),
    ],
)
def test_what_no_configuration_holds_is_refused_with_its_line(tmp_path, text, said):
    with pytest.raises(Unreadable) as error:
        read_document(text)
    assert said in str(error.value)
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as told:
        read_yaml(path)
    assert str(path) in str(told.value) and "\n" not in str(told.value)


def test_anchors_and_merge_keys_give_copies_that_an_override_changes_one_by_one(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "name: run\nrollout:\n  sampling: &limits {max_new_tokens: 64}\n  engine:\n    <<: {threads: 2, max_num_seqs: 8}\n"
        "    threads: 4\nalgorithm:\n  endings: &same {timeout: mask}\n"
    )
    config = load_config(path)
    assert config.rollout.engine.threads == 4 and config.rollout.engine.max_num_seqs == 8
    values = read_document("a: &a {x: {y: 1}}\nb: *a\n")
    assert values["a"] == values["b"] and values["a"] is not values["b"] and values["a"]["x"] is not values["b"]["x"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name: caf\xe9\n", "is not UTF-8: byte 0xe9 in line 1"),
        ("name: run\n".encode("utf-16"), "is not UTF-8"),
        (b"a: x\n" * (1 << 19), "larger than 1 MiB"),
        (b"", "holds no sections"), (b"- a\n", "holds no sections"), (b"# nothing\n", "holds no sections"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_configuration_is_one_sentence(tmp_path, content, said):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read_yaml(path)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_text_that_is_no_text_is_refused():
    with pytest.raises(Unreadable, match="line 1: half of a character"):
        read_document('a: "\\ud835"')
    with pytest.raises(UserError, match="--tracking.project .*expected text in UTF-8"):
        build_config({"name": "run"}, ["--tracking.project", "caf\udce9"])


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: run\n")
    assert load_config(path).name == "run"


@pytest.mark.parametrize("path", [".", "/dev/zero", "/no/such/file.yaml", "a" * 300 + ".yaml", "/etc/passwd/x.yaml"])
def test_a_file_that_cannot_be_read_is_one_sentence(path):
    with pytest.raises(UserError, match="cannot be read|larger than") as error:
        read_yaml(Path(path))
    assert "\n" not in str(error.value)
