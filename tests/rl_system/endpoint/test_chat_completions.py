"""OpenAI's chat completions, spoken by OpenAI's own client."""

import json
import typing

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import completion_create_params
from pydantic import TypeAdapter

from rl_system.endpoint import chat_completions
from rl_system.endpoint.known import Known
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.refusals import Refused
from tests.rl_system.chat.dialogues import make_renderer
from tests.rl_system.endpoint.clients import TOOLS
from tests.rl_system.endpoint.servers import Door, opened, run, serving

OPENING = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hi."}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"b": 1, "a": "é"}}\n</tool_call>'
TEXTS = [
    "Hello.",
    "",
    CALL,
    f"Two of them.\n{CALL}\n{CALL}",
    "<think>\nIt depends.\n</think>\n\nYes. ",
    f"<think>\nIt depends.\n</think>\n\n{CALL}",
    "long " * 80,
    "<tool_call>\nbroken\n</tool_call>",
]


def client(door: Door) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=door.base_url, api_key=door.key, max_retries=0)


async def said(door: Door, messages: list, stream: bool, **rest):
    """The SDK's own message, put together from a stream where there is one; and why it ended."""
    arguments = {"model": "policy", "messages": messages, "tools": TOOLS} | rest
    async with client(door) as sdk:
        if not stream:
            completion = await sdk.chat.completions.create(**arguments)
            return completion.choices[0].message, completion.choices[0].finish_reason
        async with sdk.chat.completions.stream(**arguments) as events:
            async for _ in events:
                pass
            final = (await events.get_final_completion()).choices[0]
    return final.message, final.finish_reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_what_the_sdk_was_given_and_sends_back_is_in_the_next_prompt_as_it_was_sampled(text, stream):
    async def body():
        async with serving() as server:
            door = opened(server, text, "Done.")
            first, finish = await said(door, OPENING, stream)
            sent = first.model_dump(exclude_none=True) if stream else first
            results = [{"role": "tool", "tool_call_id": call.id, "content": "r"} for call in first.tool_calls or ()]
            await said(door, [*OPENING, sent, *(results or [{"role": "user", "content": "And?"}])], stream)
            record = await server.close_session(door.key)
            return first, finish, record, door.engine.done

    first, finish, record, done = run(body())
    (prompt, response), (second_prompt, _) = done
    assert record.parents == [-1, 0] and record.counts.get("edited_histories", 0) == 0
    start = np.concatenate([prompt, response])
    assert np.array_equal(second_prompt[: len(start)], start)
    assert [turn.prompt_ids.tolist() for turn in record.turns] == [each.tolist() for each, _ in done]
    assert [turn.response_ids.tolist() for turn in record.turns] == [each.tolist() for _, each in done]
    assert finish == ("tool_calls" if first.tool_calls else "stop")
    renderer = make_renderer()
    expected = renderer.parse_text(text)
    if first.tool_calls:
        assert [json.loads(call.function.arguments) for call in first.tool_calls] == [call.arguments for call in expected.calls]
    assert (first.content or "") == (text.strip() if "broken" in text else expected.text)
    assert getattr(first, "reasoning_content", None) == (expected.thinking or None)


def test_parallel_calls_have_ids_of_their_own():
    async def body():
        async with serving() as server:
            first, _ = await said(opened(server, f"{CALL}\n{CALL}"), OPENING, True)
            return [call.id for call in first.tool_calls]

    ids = run(body())
    assert len(set(ids)) == 2 and all(each.startswith("call_") for each in ids)


def test_usage_logprobs_and_token_ids_are_those_of_the_turn():
    async def body():
        async with serving() as server:
            door = opened(server, "Hello é.", "Hello é.")
            async with client(door) as sdk:
                whole = await sdk.chat.completions.create(
                    model="policy", messages=OPENING, logprobs=True, extra_body={"return_token_ids": True}
                )
                stream = await sdk.chat.completions.create(
                    model="policy", messages=OPENING, logprobs=True, stream=True, stream_options={"include_usage": True},
                    extra_body={"return_token_ids": True},
                )  # fmt: skip
                chunks = [chunk async for chunk in stream]
            return whole, chunks, (await server.close_session(door.key)).turns

    whole, chunks, turns = run(body())
    turn = turns[0]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(turn.prompt_ids), len(turn.response_ids))
    assert [each.logprob for each in whole.choices[0].logprobs.content] == turn.logprobs.tolist()
    assert "".join(bytes(each.bytes).decode() for each in whole.choices[0].logprobs.content).startswith("Hello")
    assert whole.prompt_token_ids == turn.prompt_ids.tolist()
    assert whole.choices[0].token_ids == turn.response_ids.tolist()
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(turn.response_ids)
    assert chunks[0].prompt_token_ids == turn.prompt_ids.tolist()
    assert len(chunks[-2].choices[0].logprobs.content) == len(turn.response_ids)
    assert chunks[-2].choices[0].token_ids == turn.response_ids.tolist()


def test_a_stop_text_is_not_shown_and_the_turn_ends_with_it():
    async def body():
        async with serving() as server:
            door = opened(server, "Thought. Observation: sunny")
            message, finish = await said(door, OPENING, False, stop=["Observation:"], tools=openai.NOT_GIVEN)
            return message.content, finish, (await server.close_session(door.key)).turns[0].response_ids

    content, finish, kept = run(body())
    text = make_renderer().text(kept)
    assert (content, finish) == ("Thought.", "stop") and "Observation:" in text and "sunny" not in text


def test_max_tokens_and_seed_reach_the_engine():
    async def body():
        async with serving() as server:
            door = opened(server, "a b c d e", "a b c d e")
            _, finish = await said(door, OPENING, False, max_tokens=2, seed=5)
            await said(door, OPENING, False, max_completion_tokens=3)
            return finish, [(each["max_new_tokens"], each["seed"]) for each in door.engine.asked]

    assert run(body()) == ("length", [(2, 5), (3, None)])


def test_with_tool_choice_none_the_prompt_is_the_same_and_no_call_is_read():
    async def body():
        async with serving() as server:
            door = opened(server, CALL, CALL)
            auto, _ = await said(door, OPENING, False, tool_choice="auto")
            none, _ = await said(door, OPENING, False, tool_choice="none")
            return auto, none, [each["prompt_ids"].tolist() for each in door.engine.asked]

    auto, none, prompts = run(body())
    assert auto.tool_calls and not none.tool_calls and none.content == CALL
    assert prompts[0] == prompts[1]


BODY = {"model": "policy", "messages": OPENING, "tools": TOOLS}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]


@pytest.mark.parametrize(
    ("change", "parameter", "word"),
    [
        ({"n": 2}, "n", "one turn"),
        ({"top_p": 0.9}, "top_p", "distribution"),
        ({"top_k": 40}, "top_k", "distribution"),
        ({"min_p": 0.1}, "min_p", "distribution"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "distribution"),
        ({"presence_penalty": -1}, "presence_penalty", "distribution"),
        ({"repetition_penalty": 1.1}, "repetition_penalty", "distribution"),
        ({"logit_bias": {"5": 100}}, "logit_bias", "distribution"),
        ({"response_format": {"type": "json_object"}}, "response_format", "forcing"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "forcing"),
        ({"temperature": 0.3}, "temperature", "rollout.sampling.temperature 1"),
        ({"temperature": 0}, "temperature", "rollout.sampling.temperature 1"),
        ({"tool_choice": "required"}, "tool_choice", "forcing"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "forcing"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "as many"),
        ({"top_logprobs": 5}, "top_logprobs", "sampled"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "template"),
        ({"guided_json": {}}, "guided_json", "not known"),
        ({"stop_token_ids": [3]}, "stop_token_ids", "not known"),
        ({"messages": IMAGE}, "messages[0].content", "text alone"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "role"),
        ({"messages": [{"role": "user", "content": "x", "weight": 0}]}, "messages[0].weight", "not known"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "string"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].function", "object"),
        ({"messages": None}, "messages", "missing"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
        ({"tools": [{"type": "function", "function": {"name": 7}}]}, "tools[0].function.name", "string"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 1.5}, "max_tokens", "whole number"),
        ({"seed": "x"}, "seed", "whole number"),
        ({"stop": [""]}, "stop", "empty"),
        ({"stop": 5}, "stop", "texts"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"unknown": 1}}, "stream_options.unknown", "not known"),
        ({"model": "gpt-4o"}, "model", "'policy'"),
        ({"model": None}, "model", "missing"),
        ({"audio": {"voice": "x"}}, "audio", "text alone"),
        ({"modalities": ["text", "audio"]}, "modalities", "text alone"),
        ({"functions": [{"name": "f"}]}, "functions", "tools"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_refused_by_name(change, parameter, word):
    with pytest.raises(Refused) as refused:
        chat_completions.read(BODY | change, Serving(), Known())
    assert refused.value.parameter == parameter and word in refused.value.message
    error = json.loads(chat_completions.error(refused.value))["error"]
    assert (error["param"], error["message"]) == (parameter, refused.value.message) and error["code"]


@pytest.mark.parametrize(
    "change",
    [
        {"n": 1, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "temperature": 1},
        {"response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": True, "top_logprobs": 0},
        {"metadata": {"a": "b"}, "store": True, "service_tier": "auto", "user": "u", "safety_identifier": "s"},
        {name: None for name in ("n", "top_p", "logit_bias", "response_format", "stop", "seed", "reasoning_effort", "temperature")},
    ],
)  # fmt: skip
def test_what_asks_for_nothing_is_accepted(change):
    assert chat_completions.read(BODY | change, Serving(), Known()).request.messages[1]["content"] == "Hi."


def test_every_parameter_that_the_sdk_knows_is_decided_on():
    known = {
        *typing.get_type_hints(completion_create_params.CompletionCreateParamsStreaming, include_extras=True),
        *typing.get_type_hints(completion_create_params.CompletionCreateParamsNonStreaming, include_extras=True),
    }
    request = chat_completions.REQUEST
    assert known - request.read - set(request.harmless) - set(request.refused) == set()


def test_another_temperature_is_replaced_and_counted_where_the_run_says_so():
    async def body():
        async with serving() as server:
            door = opened(server, "a", serving=Serving(other_temperature="replace"))
            await said(door, OPENING, False, temperature=0.0)
            return (await server.close_session(door.key)).counts

    assert run(body())["replaced_temperatures"] == 1


def test_a_refusal_is_the_sdks_own_error_and_costs_the_call_alone():
    async def body():
        async with serving() as server:
            door = opened(server, "Hello.")
            with pytest.raises(openai.BadRequestError) as refused:
                await said(door, OPENING, False, top_p=0.5)
            with pytest.raises(openai.NotFoundError):
                await said(door, OPENING, False, model="gpt-4o")
            message, _ = await said(door, OPENING, False)
            return refused.value, message.content, (await server.close_session(door.key)).counts

    refused, content, counts = run(body())
    assert refused.param == "top_p" and content == "Hello." and counts["refused_calls"] == 2


def test_messages_take_every_shape_that_clients_send():
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": texts},
        {"role": "user", "content": "c", "name": "Ann"},
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1.0}'}, "index": 0}]},
        {"role": "tool", "tool_call_id": "call_1", "content": texts, "name": "f"},
        {"role": "assistant", "content": "d", "reasoning_content": "e"},
    ]  # fmt: skip
    read = chat_completions.read(BODY | {"messages": messages}, Serving(), Known()).request.messages
    assert read == [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "c", "name": "Ann"},
        {"role": "assistant", "content": "", "reasoning": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "content": "a\nb", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "d", "reasoning": "e"},
    ]  # fmt: skip


def test_the_request_types_of_the_sdk_are_understood():
    """What the SDK's own types call a valid request, this reads too."""
    params = TypeAdapter(completion_create_params.CompletionCreateParamsNonStreaming)
    request = {"model": "policy", "messages": OPENING, "tools": TOOLS, "stop": ["x"], "seed": 3, "max_completion_tokens": 9}
    params.validate_python(request)
    read = chat_completions.read(request, Serving(), Known()).request
    assert (read.stop, read.seed, read.max_tokens, read.tools) == (("x",), 3, 9, TOOLS)
