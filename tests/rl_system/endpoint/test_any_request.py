"""Whatever JSON a client sends is read or refused: nothing else, or its episode would be lost to a fault of the endpoint."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.endpoint import anthropic_messages, chat_completions, responses
from rl_system.endpoint.known import Known
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.refusals import Refused

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHAT = {
    "model": "policy", "max_tokens": 5, "stop": ["x"], "seed": 1, "stream": True, "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}], "tool_choice": "auto",
    "messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ],
}  # fmt: skip
RESPONSES = {
    "model": "policy", "instructions": "i", "max_output_tokens": 5, "reasoning": {"summary": "auto"}, "text": {}, "include": [],
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}], "tool_choice": "auto",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t", "annotations": []}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "3"},
    ],
}  # fmt: skip
MESSAGES = {
    "model": "policy", "max_tokens": 5, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"], "temperature": 1,
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"}, "metadata": {"user_id": "u"},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "r", "signature": "s"}, {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "3"}], "is_error": True}]},
    ],
}  # fmt: skip
ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "text", "\ud800", "user", "assistant"])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["type", "role", "text"]), inner, max_size=2)),
    max_leaves=4,
)


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all that is in `value`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


@pytest.mark.parametrize(("protocol", "body"), [(chat_completions, CHAT), (responses, RESPONSES), (anthropic_messages, MESSAGES)])
def test_the_whole_request_is_read(protocol, body):
    assert protocol.read(copy.deepcopy(body), Serving(), Known()).request.messages


@pytest.mark.parametrize(("protocol", "body"), [(chat_completions, CHAT), (responses, RESPONSES), (anthropic_messages, MESSAGES)])
@settings(max_examples=250)
@given(data=st.data())
def test_a_request_with_anything_anywhere_is_read_or_refused(protocol, body, data):
    changed = copy.deepcopy(body)
    *path, last = data.draw(st.sampled_from(places(body)[1:]))
    inner = changed
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(ANY)
    changed = json.loads(json.dumps(changed))
    session = Known()
    for _ in range(2):
        try:
            protocol.read(changed, Serving(), session)
        except Refused as refused:
            assert str(refused) and 400 <= refused.status < 500
