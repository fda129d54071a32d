import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.protocol import ToolCall
from rl_system.chat.tool_calls import MalformedCall, Response, parse_response, split_thinking, write_calls

FORMATS = ["hermes", "qwen3", "llama3", "json"]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
plain = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=8)
tagged = plain | st.sampled_from(
    ["<tool_call>", "</tool_call>", '</tool_call>\n<tool_call>{"name": "f"}', "<|python_tag|>", "; {}", "```"]
)


def calls_with(text: st.SearchStrategy[str]) -> st.SearchStrategy[list[ToolCall]]:
    values = st.one_of(text, st.integers(), st.booleans(), st.lists(text, max_size=3))
    name = st.text("abcdef_", min_size=1, max_size=12)
    return st.lists(st.builds(ToolCall, name, st.dictionaries(text, values, max_size=4)), min_size=1, max_size=3)


@pytest.mark.parametrize("tool_format", FORMATS)
@given(written=calls_with(tagged))
def test_what_is_written_is_read_back(tool_format: str, written: list[ToolCall]) -> None:
    response = parse_response(write_calls(written, tool_format), tool_format)
    assert (list(response.calls), response.text) == (written, "")


@pytest.mark.parametrize("tool_format", FORMATS)
@given(text=st.text(max_size=60) | st.text('<>/tool_call{}[]":,think|python_tag;`jsonargumentsname ', max_size=80))
def test_no_text_makes_the_reader_raise(tool_format: str, text: str) -> None:
    parse_response(text, tool_format)


@pytest.mark.parametrize("tool_format", FORMATS)
@given(written=calls_with(plain), data=st.data())
def test_a_response_cut_anywhere_yields_whole_calls_or_malformed_ones(
    tool_format: str, written: list[ToolCall], data: st.DataObject
) -> None:
    text = write_calls(written, tool_format)
    response = parse_response(text[: data.draw(st.integers(0, len(text)))], tool_format)
    whole = [call for call in response.calls if isinstance(call, ToolCall)]
    assert whole == written[: len(whole)]
    assert len(response.calls) - len(whole) <= 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "f", "arguments": {}', "JSON"),
        ('{"arguments": {}}', "name"),
        ('{"name": 3, "arguments": {}}', "name"),
        ('{"name": "f", "arguments": [1]}', "arguments"),
        ('{"name": "f", "arguments": "{}"}', "arguments"),
        ("[1, 2]", "name"),
        ("f(x=1)", "JSON"),
        ("", "JSON"),
        ('{"name": "f", "arguments": {"x": NaN}}', "JSON"),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', "JSON"),
        ('{"name": "f", "arguments": {}} and more', "after"),
        ("[" * 100_000, "deep"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(body: str, reason: str) -> None:
    (call,) = parse_response(f"<tool_call>\n{body}\n</tool_call>", "hermes").calls
    assert isinstance(call, MalformedCall) and reason in call.reason


def test_a_call_that_is_not_closed_is_malformed_only_if_it_is_not_whole() -> None:
    whole = '<tool_call>{"name": "f", "arguments": {}}'
    assert parse_response(whole, "hermes").calls == (ToolCall("f", {}),)
    (call,) = parse_response(whole[:-3], "hermes").calls
    assert isinstance(call, MalformedCall) and "closed" in call.reason


def test_tags_inside_an_argument_are_part_of_it() -> None:
    call = ToolCall("f", {"a": "</tool_call>", "b": "<tool_call>{}"})
    assert parse_response(f"Now: {write_calls([call, call], 'hermes')} Done.", "hermes") == Response(
        "", "Now: \n Done.", (call, call)
    )


def test_after_a_broken_call_reading_goes_on_at_the_next_tag() -> None:
    text = (
        '<tool_call>{"name": <tool_call>{"name": "f", "arguments": {}} and more</tool_call> so <tool_call>{"name": "g"}'
    )
    response = parse_response(text, "hermes")
    assert [getattr(call, "reason", call) for call in response.calls] == [
        "the call is not closed by </tool_call>",
        "there is text after the JSON object of the call",
        ToolCall("g", {}),
    ]
    assert response.text == "so"


def test_a_closing_tag_alone_is_malformed() -> None:
    response = parse_response('{"name": "f", "arguments": {}}</tool_call>', "hermes")
    assert isinstance(response.calls[0], MalformedCall) and response.text == ""


def test_words_around_calls_are_said() -> None:
    response = parse_response('Let me look.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "hermes")
    assert (response.text, response.calls) == ("Let me look.", (ToolCall("f", {"a": 1}),))


def test_a_good_call_beside_a_bad_one_is_read() -> None:
    text = '<tool_call>{bad}</tool_call>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    bad, good = parse_response(text, "hermes").calls
    assert isinstance(bad, MalformedCall) and good == ToolCall("f", {})


@pytest.mark.parametrize("text", ['{"a": 1} is JSON, not a call to any tool', "no calls here", ""])
def test_plain_words_are_no_call_in_the_tagged_formats(text: str) -> None:
    response = parse_response(text, "hermes")
    assert (response.text, response.calls) == (text, ())


def test_llama3_calls_follow_the_python_tag_or_stand_alone() -> None:
    call = '{"name": "f", "parameters": {"a": 1}}'
    assert parse_response(f"<|python_tag|>{call}; {call}", "llama3").calls == (ToolCall("f", {"a": 1}),) * 2
    assert parse_response(call, "llama3").calls == (ToolCall("f", {"a": 1}),)
    assert parse_response(f"I say {call}", "llama3").calls == ()


def test_json_calls_may_be_fenced_and_listed() -> None:
    call = {"name": "f", "arguments": {"a": 1}}
    assert parse_response(f"```json\n{json.dumps([call, call])}\n```", "json").calls == (ToolCall("f", {"a": 1}),) * 2


@pytest.mark.parametrize(
    ("text", "thinking", "visible"),
    [
        ("<think>\nhm\n</think>\n\nHello", "hm", "\n\nHello"),
        ("hm\n</think>\n\nHello", "hm", "\n\nHello"),
        ("<think>\nhm", "hm", ""),
        ("Hello<think>hm", "hm", "Hello"),
        ("<think>a</think>b</think>c", "ab", "c"),
        ("<think>###STOP###</think>Hi", "###STOP###", "Hi"),
        ("Hello", "", "Hello"),
    ],
)
def test_thinking_is_never_visible(text: str, thinking: str, visible: str) -> None:
    assert split_thinking(text) == (thinking, visible)


def test_calls_inside_thinking_are_not_made() -> None:
    text = '<think><tool_call>{"name": "f", "arguments": {}}</tool_call></think>Done.'
    response = parse_response(text, "hermes")
    assert (response.text, response.calls) == ("Done.", ())


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("1e999", "1e999 is larger than any number"),
        ("-1e999", "-1e999 is larger than any number"),
        ("9" * 5000, "99999999999999999999… has more than 308 digits"),
        ("1" * 400 + ".5", "11111111111111111111… is larger than any number"),
        ("NaN", "NaN is not JSON"),
        ("[" * 100 + "]" * 100, "nested more than 32 levels deep"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("tool_format", ["hermes", "llama3", "json"])
def test_a_number_that_nothing_can_compute_with_makes_a_call_malformed(number: str, reason: str, tool_format: str) -> None:
    text = f'{{"name": "f", "arguments": {{"a": {number}}}}}'
    (call,) = parse_response(f"<tool_call>{text}</tool_call>" if tool_format == "hermes" else text, tool_format).calls
    assert isinstance(call, MalformedCall) and reason in call.reason and len(call.reason) < 200


def test_large_and_small_numbers_that_can_be_computed_with_are_read() -> None:
    text = f'{{"name": "f", "arguments": {{"a": 1e308, "b": 1e-999, "c": {10**30}, "d": {"[" * 20 + "]" * 20}}}}}'
    (call,) = parse_response(text, "json").calls
    assert (call.arguments["a"], call.arguments["b"], call.arguments["c"]) == (1e308, 0.0, 10**30)
