"""Histories that come again are read once, and never taken for one that is not the same."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.endpoint import anthropic_messages, chat_completions, known, message_digest, responses
from rl_system.endpoint.known import Known
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.refusals import Refused
from rl_system.endpoint.requests import TurnRequest

TOOL = {"name": "f", "input_schema": {"type": "object"}}


def called(arguments) -> dict:
    content = [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": arguments}]
    return {"role": "assistant", "content": content}


def asked(*messages) -> dict:
    return {"model": "policy", "max_tokens": 5, "system": "s", "tools": [TOOL], "messages": [{"role": "user", "content": "q"}, *messages]}


def test_what_came_before_is_read_once_whatever_comes_after_it():
    times: list[str] = []

    def read(item: str, place: int) -> list[dict]:
        times.append(item)
        return [{"role": "user", "content": item}]

    session = Known()
    for history in (["a"], ["a", "b"], ["a", "c"], ["a", "b", "d"], ["e", "b"]):
        messages, digests = session.messages(history, read, list(range(len(history))))
        assert [message["content"] for message in messages] == history
        assert digests == [message_digest.message_digest(message) for message in messages]
    assert times == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(("one", "other"), [({"a": 1}, {"a": True}), ({"a": 0}, {"a": False}), ({"a": "1"}, {"a": 1}), ({}, {"a": None})])
def test_arguments_that_only_seem_equal_are_told_apart(one, other):
    session = Known()
    first, second = (anthropic_messages.read(asked(called(each)), Serving(), session).request for each in (one, other))
    for request, arguments in ((first, one), (second, other)):
        read = request.messages[2]["tool_calls"][0]["function"]["arguments"]
        assert json.dumps(read) == json.dumps(arguments)
    assert first.digests[:2] == second.digests[:2] and first.digests[2] != second.digests[2]


def test_what_was_refused_is_refused_again_at_the_place_where_it_stands_now():
    session, wrong = Known(), {"role": "user", "content": [{"type": "image"}]}
    right = {"role": "user", "content": "p"}
    for before in ([], [right]):
        with pytest.raises(Refused, match=rf"messages\[{1 + len(before)}\]"):
            anthropic_messages.read(asked(*before, wrong), Serving(), session)


def test_what_is_known_is_bounded(monkeypatch):
    monkeypatch.setattr(known, "MOST_BYTES", 1000)
    session = Known()
    for number in range(200):
        session.messages([f"{number} {'x' * 100}"], lambda item, _: [{"role": "user", "content": item}], [0])
        assert sum(len(content) for _, content in session._known) <= 1200


def test_a_request_that_is_nested_too_deeply_is_refused():
    deep: dict = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(Refused, match="nested too deeply"):
        Known().tools([deep], lambda tools: tools)


contents = st.text("ab\u00e9", max_size=3)
values = st.one_of(st.booleans(), st.integers(0, 1), st.sampled_from([0.0, 1.0, "1", None]))
chats = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, contents),
    st.builds(lambda text: {"role": "assistant", "content": [{"type": "text", "text": text}], "reasoning_content": text}, contents),
    st.builds(
        lambda value: {
            "role": "assistant", "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": value})}}],
        },
        values,
    ),
)  # fmt: skip
items = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), contents),
    st.builds(lambda text: {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}, contents),
    st.builds(
        lambda value: {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": json.dumps({"a": value})}, values
    ),
    st.just({"type": "function_call_output", "call_id": "call_1", "output": "r"}),
)
messages = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), contents),
    st.builds(lambda value: called({"a": value}), values),
)
BODIES = [
    (chat_completions, lambda given: {"model": "policy", "messages": given}, st.lists(chats, min_size=1, max_size=4)),
    (responses, lambda given: {"model": "policy", "input": given, "instructions": "i"}, st.lists(items, min_size=1, max_size=5)),
    (anthropic_messages, lambda given: asked(*given), st.lists(messages, min_size=1, max_size=4)),
]


@pytest.mark.parametrize(("protocol", "body", "histories"), BODIES)
@given(data=st.data())
def test_a_session_that_knows_much_reads_as_one_that_knows_nothing(protocol, body, histories, data):
    session = Known()
    for history in data.draw(st.lists(histories, max_size=5)):
        request, afresh = (_read(protocol, body(copy.deepcopy(history)), memory) for memory in (session, Known()))
        assert json.dumps(request.messages) == json.dumps(afresh.messages)
        assert request.digests == [message_digest.message_digest(message) for message in afresh.messages]
        assert request.tools_digest == message_digest.tools_digest(afresh.tools)


def _read(protocol, body: dict, session: Known) -> TurnRequest:
    return protocol.read(json.loads(json.dumps(body)), Serving(), session).request
