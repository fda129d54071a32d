"""Our readers of tool calls against vLLM's, which serve the same formats but tell an agent nothing about a broken call.

vLLM's give the whole response up as words where one call is broken, and need vLLM in every process that parses. So they
are no part of the library; they are what it is compared with.
"""

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.protocol import ToolCall
from rl_system.chat.tool_calls import MalformedCall, parse_response, write_calls
from tests.rl_system.chat.dialogues import make_tokenizer

pytestmark = pytest.mark.slow

words = st.text(st.characters(codec="utf-8", exclude_characters="<>{}[]"), max_size=10)
arguments = st.dictionaries(words, words | st.integers() | st.booleans() | st.lists(words, max_size=2), max_size=3)
calls = st.lists(st.builds(ToolCall, st.text("abcdef_", min_size=1, max_size=8), arguments), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def established() -> dict:
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser
    from vllm.tool_parsers.llama_tool_parser import Llama3JsonToolParser

    logging.getLogger("vllm").setLevel(logging.CRITICAL)  # They log a traceback for every broken call.
    tokenizer = make_tokenizer()
    if "<|python_tag|>" not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|python_tag|>"]})
    hermes = Hermes2ProToolParser(tokenizer)
    return {"hermes": hermes, "qwen3": hermes, "llama3": Llama3JsonToolParser(tokenizer)}


def read(parser: object, text: str) -> list[tuple[str, object]]:
    found = parser.extract_tool_calls(text, None)
    return [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]


def ours(text: str, tool_format: str) -> list[tuple[str, object]]:
    found = parse_response(text, tool_format).calls
    return [(call.name, call.arguments) for call in found if not isinstance(call, MalformedCall)]


@pytest.mark.parametrize("tool_format", ["hermes", "qwen3", "llama3"])
@settings(max_examples=200, deadline=None)
@given(written=calls, before=words)
def test_well_formed_calls_are_read_alike(established, tool_format: str, written: list[ToolCall], before: str) -> None:
    text = write_calls(written, tool_format)
    if tool_format != "llama3":  # There the whole message is the call.
        text = f"{before}\n{text}"
    expected = [(call.name, call.arguments) for call in written]
    assert ours(text, tool_format) == read(established[tool_format], text) == expected


@settings(max_examples=400, deadline=None)
@given(written=calls, data=st.data())
def test_whatever_the_established_parser_reads_of_a_damaged_response_ours_reads_too(
    established, written: list[ToolCall], data: st.DataObject
) -> None:
    text = write_calls(written, "hermes")
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(start + 6, len(text))))
        text = (
            text[:start]
            + data.draw(st.sampled_from(["", " ", "}", '"', "<tool_call>", "</tool_call>", "x"]))
            + text[stop:]
        )
    found = read(established["hermes"], text)
    if all(isinstance(values, dict) for _, values in found):
        read_by_us = ours(text, "hermes")
        assert all(call in read_by_us for call in found)
