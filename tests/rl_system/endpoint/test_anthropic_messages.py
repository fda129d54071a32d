"""Anthropic's messages, spoken by Anthropic's own client."""

import json
import typing

import anthropic
import numpy as np
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent, message_create_params
from pydantic import TypeAdapter

from rl_system.endpoint import anthropic_messages
from rl_system.endpoint.known import Known
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.refusals import Refused
from tests.rl_system.chat.dialogues import make_renderer
from tests.rl_system.endpoint.servers import Door, opened, run, serving
from tests.rl_system.endpoint.test_chat_completions import CALL, TEXTS

TOOLS = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
OPENING = [{"role": "user", "content": "Hi."}]
ASKED = {"model": "policy", "max_tokens": 500, "system": "You help.", "messages": OPENING}


def client(door: Door) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=door.server.base_url, api_key=door.key, max_retries=0)


async def said(door: Door, messages: list, stream: bool, **rest) -> Message:
    arguments = ASKED | {"messages": messages, "tools": TOOLS} | rest
    async with client(door) as sdk:
        if not stream:
            return await sdk.messages.create(**arguments)
        async with sdk.messages.stream(**arguments) as events:
            return await events.get_final_message()


@pytest.mark.parametrize("thinking_returns", [True, False])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_what_the_sdk_was_given_and_sends_back_is_in_the_next_prompt_as_it_was_sampled(text, stream, thinking_returns):
    async def body():
        async with serving() as server:
            door = opened(server, text, "Done.")
            first = await said(door, OPENING, stream)
            blocks = [block for block in first.content if thinking_returns or block.type != "thinking"]
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": "r"} for block in blocks if block.type == "tool_use"
            ]
            more = {"role": "user", "content": results or "And?"}
            await said(door, [*OPENING, {"role": "assistant", "content": blocks}, more], stream)
            return first, await server.close_session(door.key), door.engine.done

    first, record, done = run(body())
    (prompt, response), (second_prompt, _) = done
    assert record.parents == [-1, 0] and record.counts.get("edited_histories", 0) == 0
    start = np.concatenate([prompt, response])
    assert np.array_equal(second_prompt[: len(start)], start)
    assert [turn.response_ids.tolist() for turn in record.turns] == [each.tolist() for _, each in done]
    expected = make_renderer().parse_text(text)
    calls = [block for block in first.content if block.type == "tool_use"]
    assert first.stop_reason == ("tool_use" if calls else "end_turn")
    if "broken" not in text:
        assert [call.input for call in calls] == [call.arguments for call in expected.calls]
        assert "".join(block.text for block in first.content if block.type == "text") == expected.text
        assert "".join(block.thinking for block in first.content if block.type == "thinking") == expected.thinking
    assert (first.usage.input_tokens, first.usage.output_tokens) == (len(prompt), len(response))


def test_numbers_spelled_otherwise_are_the_same_call():
    text = '<tool_call>\n{"name": "f", "arguments": {"x": 1.0, "y": [2, 3.5]}}\n</tool_call>'

    async def body():
        async with serving() as server:
            door = opened(server, text, "Done.")
            first = await said(door, OPENING, False)
            (use,) = first.content
            again = {"type": "tool_use", "id": use.id, "name": "f", "input": {"y": [2.0, 3.5], "x": 1}}
            result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "r"}]}
            await said(door, [*OPENING, {"role": "assistant", "content": [again]}, {"role": "user", "content": [result]}], False)
            return await server.close_session(door.key)

    assert run(body()).parents == [-1, 0]


def test_results_of_tools_are_messages_of_their_own_and_errors_are_said_in_words():
    read = anthropic_messages.read_message(
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "fine"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such file", "is_error": True},
                {"type": "tool_result", "tool_use_id": "toolu_3"},
                {"type": "text", "text": "Go"},
                {"type": "text", "text": "on."},
            ],
        },
        "messages[0].",
    )
    assert read == [
        {"role": "tool", "content": "fine", "tool_call_id": "1"},
        {"role": "tool", "content": "Error: no such file", "tool_call_id": "2"},
        {"role": "tool", "content": "", "tool_call_id": "3"},
        {"role": "user", "content": "Go\non."},
    ]


def test_a_stop_sequence_ends_the_turn_and_is_told():
    async def body():
        async with serving() as server:
            door = opened(server, "Thought. Observation: sunny")
            return await said(door, OPENING, False, stop_sequences=["Observation:"], tools=anthropic.NOT_GIVEN)

    message = run(body())
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == ("stop_sequence", "Observation:", "Thought.")


def test_an_answer_that_was_cut_says_so():
    async def body():
        async with serving() as server:
            return await said(opened(server, "a b c d e f"), OPENING, True, max_tokens=2)

    assert run(body()).stop_reason == "max_tokens"


def test_tokens_are_counted_without_a_turn():
    async def body():
        async with serving() as server:
            door = opened(server, "Hello.")
            async with client(door) as sdk:
                count = await sdk.messages.count_tokens(model="policy", system="You help.", messages=OPENING, tools=TOOLS)
            first = await said(door, OPENING, False)
            return count.input_tokens, first.usage.input_tokens, len(door.engine.asked)

    counted, used, asked = run(body())
    assert counted == used and asked == 1


@pytest.mark.parametrize("text", TEXTS)
def test_every_event_of_a_stream_is_one_that_the_protocol_knows(text):
    async def body():
        async with serving() as server:
            door = opened(server, text)
            async with client(door) as sdk:
                return [event async for event in await sdk.messages.create(**ASKED, tools=TOOLS, stream=True)]

    events = run(body())
    for event in events:
        TypeAdapter(RawMessageStreamEvent).validate_python(event.model_dump())
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"]
    opened_blocks = [event.index for event in events if event.type == "content_block_start"]
    assert opened_blocks == [event.index for event in events if event.type == "content_block_stop"] == [*range(len(opened_blocks))]


REFUSED = [
    ("top_p", 0.9), ("top_k", 5), ("temperature", 0.5), ("thinking", {"type": "enabled", "budget_tokens": 1024}),
    ("tool_choice", {"type": "any"}), ("tool_choice", {"type": "tool", "name": "f"}), ("mcp_servers", [{"name": "x"}]),
    ("tool_choice", {"type": "auto", "disable_parallel_tool_use": True}), ("tools", [{"type": "bash_20250124", "name": "bash"}]),
    ("max_tokens", None), ("max_tokens", 0), ("max_tokens", True), ("messages", []), ("model", "claude"), ("colour", "red"),
    ("tools", [{"name": "f"}]), ("system", 3), ("stop_sequences", [""]),
    ("messages", [{"role": "user", "content": [{"type": "image", "source": {}}]}]),
    ("messages", [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]),
    ("messages", [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]),
    ("messages", [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": "x"}]}]),
    ("messages", [{"role": "robot", "content": "x"}]), ("messages", ["x"]), ("messages", [{"role": "user"}]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_cannot_be_done_is_refused_with_the_name_of_the_field(name, value):
    with pytest.raises(Refused) as refused:
        anthropic_messages.read(ASKED | {name: value}, Serving(), Known())
    assert name in refused.value.message
    shape = json.loads(anthropic_messages.error(refused.value))
    assert shape["type"] == "error" and shape["error"]["message"] == refused.value.message


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", 1), ("top_p", 1.0), ("thinking", {"type": "adaptive"}), ("service_tier", "auto"), ("stop_sequences", []),
    ("metadata", {"user_id": "planner"}), ("tool_choice", {"type": "none"}), ("tools", TOOLS), ("system", [{"type": "text", "text": "x"}]),
])  # fmt: skip
def test_what_changes_nothing_is_taken(name, value):
    anthropic_messages.read(ASKED | {name: value}, Serving(), Known())


def test_every_field_that_the_library_knows_is_read_harmless_or_refused_for_a_reason():
    known = set(typing.get_type_hints(message_create_params.MessageCreateParamsStreaming))
    fields = anthropic_messages.REQUEST
    assert not known - fields.read - fields.harmless.keys() - fields.refused.keys()


@pytest.mark.parametrize(("key", "error"), [("wrong", anthropic.AuthenticationError)])
def test_a_wrong_key_is_the_error_that_the_sdk_knows(key, error):
    async def body():
        async with serving() as server:
            async with AsyncAnthropic(base_url=server.base_url, api_key=key, max_retries=0) as sdk:
                with pytest.raises(error):
                    await sdk.messages.create(**ASKED)

    run(body())


def test_a_call_in_the_text_of_a_tool_is_no_call():
    async def body():
        async with serving() as server:
            door = opened(server, CALL, "Done.")
            first = await said(door, OPENING, False)
            result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": CALL}
            return await said(door, [*OPENING, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}], False)

    assert run(body()).stop_reason == "end_turn"
