"""OpenAI's responses, spoken by OpenAI's own client."""

import typing

import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent, response_create_params
from pydantic import TypeAdapter

from rl_system.endpoint import responses
from rl_system.endpoint.known import Known
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.refusals import Refused
from tests.rl_system.chat.dialogues import make_renderer
from tests.rl_system.endpoint.servers import Door, opened, run, serving
from tests.rl_system.endpoint.test_chat_completions import CALL, TEXTS

TOOLS = [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}]
OPENING = [{"role": "user", "content": "Hi."}]
ASKED = {"model": "policy", "instructions": "You help.", "input": OPENING}


def client(door: Door) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=door.base_url, api_key=door.key, max_retries=0)


async def said(door: Door, given: list, stream: bool, **rest) -> Response:
    arguments = ASKED | {"input": given, "tools": TOOLS} | rest
    async with client(door) as sdk:
        if not stream:
            return await sdk.responses.create(**arguments)
        async with sdk.responses.stream(**arguments) as events:
            async for _ in events:
                pass
            return await events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_what_the_sdk_was_given_and_sends_back_is_in_the_next_prompt_as_it_was_sampled(text, stream):
    async def body():
        async with serving() as server:
            door = opened(server, text, "Done.")
            first = await said(door, OPENING, stream)
            items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) if stream else item for item in first.output]
            for item in items if stream else ():
                for part in item.get("content", ()):
                    part.pop("parsed", None)
            results = [
                {"type": "function_call_output", "call_id": item.call_id, "output": "r"}
                for item in first.output
                if item.type == "function_call"
            ]
            await said(door, [*OPENING, *items, *(results or [{"role": "user", "content": "And?"}])], stream)
            return first, await server.close_session(door.key), door.engine.done

    first, record, done = run(body())
    (prompt, response), (second_prompt, _) = done
    assert record.parents == [-1, 0] and record.counts.get("edited_histories", 0) == 0
    start = np.concatenate([prompt, response])
    assert np.array_equal(second_prompt[: len(start)], start)
    assert [turn.response_ids.tolist() for turn in record.turns] == [each.tolist() for _, each in done]
    expected = make_renderer().parse_text(text)
    assert first.status == "completed"
    assert first.output_text == (text.strip() if "broken" in text else expected.text)
    thoughts = [item.content[0].text for item in first.output if item.type == "reasoning"]
    assert thoughts == ([expected.thinking] if expected.thinking else [])
    assert (first.usage.input_tokens, first.usage.output_tokens) == (len(prompt), len(response))


@pytest.mark.parametrize("text", TEXTS)
def test_every_event_of_a_stream_is_one_that_the_protocol_knows_and_they_are_numbered(text):
    async def body():
        async with serving() as server:
            door = opened(server, text)
            async with client(door) as sdk:
                return [event async for event in await sdk.responses.create(**ASKED, tools=TOOLS, stream=True)]

    events = run(body())
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.model_dump())
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]


def test_an_answer_that_was_cut_says_so():
    async def body():
        async with serving() as server:
            door = opened(server, "a b c d e f", "a b c d e f")
            async with client(door) as sdk:
                stream = await sdk.responses.create(**ASKED, max_output_tokens=2, stream=True)
                last = [event async for event in stream][-1]
            return await said(door, OPENING, False, max_output_tokens=2), last

    response, last = run(body())
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert last.type == "response.incomplete" and last.response.status == "incomplete"


def test_items_of_one_answer_are_one_message_and_those_of_the_next_another():
    def reasoning(text):
        return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    def message(text):
        return {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}]}  # fmt: skip

    def call(number):
        return {"type": "function_call", "call_id": f"call_{number}", "name": "f", "arguments": "{}", "id": "fc_1"}

    read, _ = responses.read_input(
        [{"role": "user", "content": "Q"}, reasoning("R"), message("M"), call(1), call(2), message("N"), call(3), reasoning("S"), call(4),
         {"type": "function_call_output", "call_id": "call_4", "output": [{"type": "input_text", "text": "r"}]}, message("O")],
        Known(),
    )  # fmt: skip
    shapes = [(m["role"], m["content"], m.get("reasoning", ""), [c["id"] for c in m.get("tool_calls", ())]) for m in read]
    assert shapes == [
        ("user", "Q", "", []), ("assistant", "M", "R", ["1", "2"]), ("assistant", "N", "", ["3"]), ("assistant", "", "S", ["4"]),
        ("tool", "r", "", []), ("assistant", "O", "", []),
    ]  # fmt: skip


REFUSED = [
    ("top_p", 0.5), ("temperature", 0.2), ("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True),
    ("tool_choice", "required"), ("tool_choice", {"type": "function", "name": "f"}), ("truncation", "auto"),
    ("reasoning", {"effort": "high"}), ("text", {"format": {"type": "json_object"}}), ("include", ["message.output_text.logprobs"]),
    ("tools", [{"type": "web_search"}]), ("max_output_tokens", 0), ("input", []), ("input", 5), ("input", None), ("model", "gpt"),
    ("input", [{"type": "item_reference", "id": "x"}]), ("input", [{"role": "user", "content": [{"type": "input_image"}]}]),
    ("input", [{"role": "robot", "content": "x"}]), ("parallel_tool_calls", False), ("colour", "red"), ("max_tool_calls", 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_cannot_be_done_is_refused_with_the_name_of_the_field(name, value):
    with pytest.raises(Refused, match=name):
        responses.read(ASKED | {name: value}, Serving(), Known())


@pytest.mark.parametrize(("name", "value"), [
    ("input", "Hi."), ("store", False), ("temperature", 1.0), ("reasoning", {"effort": None, "summary": "auto"}), ("top_p", 1),
    ("text", {"format": {"type": "text"}}), ("include", ["reasoning.encrypted_content"]), ("include", []), ("tool_choice", "none"),
    ("truncation", "disabled"), ("parallel_tool_calls", True), ("metadata", {"a": "b"}),
])  # fmt: skip
def test_what_changes_nothing_is_taken(name, value):
    responses.read(ASKED | {name: value}, Serving(), Known())


def test_every_field_that_the_library_knows_is_read_harmless_or_refused_for_a_reason():
    known = set(typing.get_type_hints(response_create_params.ResponseCreateParamsStreaming))
    fields = responses.REQUEST
    assert not known - fields.read - fields.harmless.keys() - fields.refused.keys()


def test_a_call_goes_on_from_one_of_another_protocol():
    async def body():
        async with serving() as server:
            door = opened(server, CALL, "Done.")
            async with client(door) as sdk:
                first = await sdk.chat.completions.create(
                    model="policy", messages=[{"role": "system", "content": "You help."}, *OPENING],
                    tools=[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
                )  # fmt: skip
            (call,) = first.choices[0].message.tool_calls
            items = [
                {"type": "function_call", "call_id": call.id, "name": "f", "arguments": call.function.arguments},
                {"type": "function_call_output", "call_id": call.id, "output": "r"},
            ]
            await said(door, [*OPENING, *items], False)
            return await server.close_session(door.key)

    assert run(body()).parents == [-1, 0]
