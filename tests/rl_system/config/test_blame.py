"""Mistakes are told where they were made, in words that need no Python."""

from pathlib import Path

import pytest

from rl_system.config.load import build_config, check, load_config
from rl_system.config.model import ModelConfig
from rl_system.errors import UserError


def refusal(tmp_path: Path, text: str, *words: str) -> str:
    path = tmp_path / "run.yaml"
    path.write_text("name: run\n" + text)
    with pytest.raises(UserError) as error:
        load_config(path, list(words))
    return str(error.value).replace(str(path), "FILE")


def test_a_wrong_override_is_told_as_an_override_and_a_wrong_file_as_the_file(tmp_path):
    assert refusal(tmp_path, "", "--rollout.group_size", "0").startswith("--rollout.group_size 0: ")
    assert refusal(tmp_path, "rollout: {group_size: 0}\n", "--steps", "3").startswith("FILE: ")
    assert refusal(tmp_path, "", "--rollout.group_size.x", "0").startswith("--rollout.group_size.x 0: ")
    assert refusal(tmp_path, "", "--algorithm.length_penalty", "1").startswith("FILE with --algorithm.length_penalty 1: ")


@pytest.mark.parametrize("word", ["", "3", "off", "[]", "[1]"])
def test_what_is_no_section_is_told_the_keys_that_one_has(tmp_path, word):
    for text in (f"rollout: {word}\n", f"environment:\n  user: {word}\n"):
        said = refusal(tmp_path, text)
        assert "expected a section with keys such as" in said and "Config" not in said


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b"])
def test_an_override_of_no_key_is_refused(key):
    with pytest.raises(UserError, match="names no key"):
        build_config({"name": "run"}, [f"--{key}=1"])


def test_a_key_that_stands_in_another_section_is_found_there(tmp_path):
    assert "did you mean rollout.group_size?" in refusal(tmp_path, "environment: {group_size: 4}\n")


def test_a_key_with_a_dot_in_a_file_is_told_the_sections_to_write(tmp_path):
    assert "rollout: {group_size: …}" in refusal(tmp_path, "rollout.group_size: 4\n")


def test_no_message_shows_a_regular_expression(tmp_path):
    for name in ("a/b", "é", "-a", "..", "a b"):
        said = refusal(tmp_path, "", f"--name={name}")
        assert "made of letters" in said and "^" not in said and "[A-Z" not in said


def test_a_name_that_the_file_system_does_not_take_is_refused_with_its_limit(tmp_path):
    assert "takes 255" in refusal(tmp_path, "", "--name", "a" * 256)


def test_every_path_is_absolute_after_loading(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    (tmp_path / "model").mkdir()
    config = build_config({"name": "run"}, ["--output=~/runs", "--model.chat_template", "t.jinja", "--model.path", "model"])
    assert config.output == Path("/home/somebody/runs") and config.model.chat_template == str(tmp_path / "t.jinja")
    assert config.model.path == str(tmp_path / "model") and build_config({"name": "run"}).output == tmp_path / "runs"
    user = {"kind": "llm", "model": "~/m"}
    assert build_config({"name": "run", "environment": {"user": user}}).environment.user.model == "/home/somebody/m"
    served = user | {"api_base": "http://127.0.0.1:1/v1"}
    assert build_config({"name": "run", "environment": {"user": served}}).environment.user.model == "~/m"


@pytest.mark.parametrize("place", ["~nobody-of-that-name/x", "a\0b", ""])
def test_a_path_that_can_be_none_is_refused(place):
    with pytest.raises(UserError, match="expected a"):
        check(ModelConfig, {"path": place}, "--model")
    with pytest.raises(UserError, match="--output"):
        build_config({"name": "run"}, [f"--output={place}"])
