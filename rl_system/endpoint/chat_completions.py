"""OpenAI's chat completions: https://platform.openai.com/docs/api-reference/chat

Beyond OpenAI's own fields an assistant's message has `reasoning_content`, as other servers of thinking models give it, and
`return_token_ids` gives `prompt_token_ids` and the choice's `token_ids`, as vLLM does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from envs.protocol import Message
from rl_system.chat.renderer import Renderer
from rl_system.endpoint import parameters
from rl_system.endpoint.calls import Call
from rl_system.endpoint.chunks import pieces
from rl_system.endpoint.known import Known
from rl_system.endpoint.parameters import (
    CHANGES_DISTRIBUTION,
    EFFORT,
    NO_SCHEMA,
    NOT_OFFERED,
    ONE_ANSWER,
    TEXT_ONLY,
    Fields,
    Serving,
)
from rl_system.endpoint.refusals import Refused
from rl_system.endpoint.requests import TurnRequest, read_arguments

PATH = "/v1/chat/completions"
PREFIX = "chatcmpl-"
"""Of completions' ids."""
FINISH_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "stop_text": "stop"}

REQUEST = Fields(
    read=frozenset(
        "messages model max_tokens max_completion_tokens stop stream stream_options tools tool_choice seed logprobs "
        "temperature user return_token_ids".split()
    ),
    harmless={
        "metadata": "labels for the caller's own records",
        "store": "nothing is stored beyond the run's own transcripts",
        "service_tier": "there is one",
        "prompt_cache_key": "an episode keeps to one engine, and to its prefix cache, anyway",
        "prompt_cache_options": "the prefix cache is always on",
        "prompt_cache_retention": "the prefix cache is always on",
        "safety_identifier": "a label of the caller's user",
    },
    refused={
        "n": ((1,), ONE_ANSWER),
        "best_of": ((1,), ONE_ANSWER),
        "top_p": ((1,), CHANGES_DISTRIBUTION),
        "top_k": ((-1, 0), CHANGES_DISTRIBUTION),
        "min_p": ((0,), CHANGES_DISTRIBUTION),
        "frequency_penalty": ((0,), CHANGES_DISTRIBUTION),
        "presence_penalty": ((0,), CHANGES_DISTRIBUTION),
        "repetition_penalty": ((1,), CHANGES_DISTRIBUTION),
        "logit_bias": (({},), CHANGES_DISTRIBUTION),
        "response_format": (({"type": "text"},), NO_SCHEMA),
        "parallel_tool_calls": ((True,), "the model makes as many calls as it likes; use the first one only, if you must"),
        "top_logprobs": ((0,), "the engine tells the sampled tokens' logprobs alone"),
        "reasoning_effort": ((), EFFORT),
        "verbosity": ((), EFFORT),
        "function_call": ((), "it gave way to tool_choice"),
        "functions": (([],), "they gave way to tools"),
        "modalities": ((["text"],), TEXT_ONLY),
        "audio": ((), TEXT_ONLY),
        "prediction": ((), NOT_OFFERED),
        "web_search_options": ((), NOT_OFFERED),
        "moderation": ((), NOT_OFFERED),
    },
)
_LABEL = {"name": "shown to the model where its chat template shows names"}
MESSAGES = {
    "system": Fields(frozenset({"role", "content"}), _LABEL),
    "developer": Fields(frozenset({"role", "content"}), _LABEL),
    "user": Fields(frozenset({"role", "content"}), _LABEL),
    "assistant": Fields(
        frozenset({"role", "content", "tool_calls", "reasoning_content"}),
        _LABEL | {"annotations": "an answer has none", "provider_specific_fields": "an answer has none"},
        {
            "refusal": (("",), "an answer has none"),
            "audio": ((), TEXT_ONLY),
            "function_call": ((), "it gave way to tool_calls"),
            "reasoning": ((), "thinking is called reasoning_content here"),
        },
    ),
    "tool": Fields(frozenset({"role", "content", "tool_call_id"}), {"name": "the call says which tool it was"}),
}
PARTS = {"text": Fields(frozenset({"type", "text"}), {"cache_control": "the prefix cache is always on"})}
TOOL = Fields(frozenset({"type", "function"}), {"cache_control": "the prefix cache is always on"})
FUNCTION = Fields(
    frozenset({"name", "description", "parameters"}),
    {"strict": "arguments come as the model wrote them, and may be wrong"},
)
CALL = Fields(
    frozenset({"id", "type", "function"}),
    {"index": "order says it", "name": "the function says it", "provider_specific_fields": "an answer has none"},
)
CALLED = Fields(frozenset({"name", "arguments"}))
STREAM = Fields(frozenset({"include_usage"}), {"include_obfuscation": "the connection stays on this machine"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was read. replaced_temperature: whether it asked for one that it does not get."""

    request: TurnRequest
    model: str
    stream: bool
    usage: bool
    logprobs: bool
    token_ids: bool
    replaced_temperature: bool


def read(body: Any, serving: Serving, known: Known) -> Asked:
    """known: what the session was sent before. Raises Refused for what is not understood or cannot be done."""
    body = REQUEST.check(body)
    parameters.check_model(body, serving)
    tools, tools_digest = known.tools(parameters.items(body, "tools", []), read_tools)
    limits = [parameters.whole_number(body, name, 1) for name in ("max_tokens", "max_completion_tokens")]
    given = parameters.items(body, "messages")
    if not given:
        raise Refused("messages is empty; it must hold at least one", parameter="messages")
    messages, digests = known.messages(given, read_message, [f"messages[{index}]." for index in range(len(given))])
    options = STREAM.check(body.get("stream_options", {}), "stream_options.")
    return Asked(
        request=TurnRequest(
            messages=messages,
            tools=tools,
            max_tokens=min((limit for limit in limits if limit is not None), default=None),
            stop=parameters.stop_texts(body, "stop"),
            seed=parameters.whole_number(body, "seed"),
            calls=read_tool_choice(body.get("tool_choice")),
            protocol="chat completions",
            caller=parameters.text(body, "user", ""),
            digests=digests,
            tools_digest=tools_digest,
        ),
        model=serving.model,
        stream=parameters.flag(body, "stream"),
        usage=parameters.flag(options, "include_usage", where="stream_options."),
        logprobs=parameters.flag(body, "logprobs"),
        token_ids=parameters.flag(body, "return_token_ids"),
        replaced_temperature=parameters.check_temperature(body, serving),
    )


def read_tools(tools: list[Any]) -> list[dict[str, Any]]:
    read = []
    for tool, where in parameters.offered(tools, ("function",), "tools of type 'function'"):
        function = FUNCTION.check(TOOL.check(tool, where).get("function"), f"{where}function.")
        parameters.text(function, "name", where=f"{where}function.")
        function.pop("strict", None)
        read.append({"type": "function", "function": function})
    return read


def read_tool_choice(choice: Any) -> bool:
    """Whether calls are read from the answer. With 'none' the tools stay in the prompt, so that it stays the same."""
    if choice in (None, "auto"):
        return True
    if choice == "none":
        return False
    raise Refused(f"tool_choice {choice!r} is not supported: {NO_SCHEMA}; use 'auto' or 'none'", parameter="tool_choice")


def read_message(message: Any, where: str) -> list[Message]:
    role = parameters.role(message, MESSAGES, where)
    message = MESSAGES[role].check(message, where)
    read: Message = {
        "role": "system" if role == "developer" else role,
        "content": parameters.texts(message.get("content", ""), f"{where}content", PARTS),
    }
    if "name" in message and role != "tool":
        read["name"] = parameters.text(message, "name", where=where)
    if role == "tool":
        read["tool_call_id"] = parameters.text(message, "tool_call_id", "", where)
    if role == "assistant":
        read["reasoning"] = parameters.text(message, "reasoning_content", "", where)
        calls = [
            _read_call(call, f"{where}tool_calls[{index}].")
            for index, call in enumerate(parameters.items(message, "tool_calls", [], where))
        ]
        if calls:
            read["tool_calls"] = calls
    return [read]


def _read_call(call: Any, where: str) -> dict[str, Any]:
    call = CALL.check(call, where)
    function = CALLED.check(call.get("function"), f"{where}function.")
    name = parameters.text(function, "name", where=f"{where}function.")
    arguments = read_arguments(parameters.text(function, "arguments", "", f"{where}function."))
    identity = parameters.text(call, "id", "", where).removeprefix("call_")
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(asked: Asked, call: Call, renderer: Renderer, created: int) -> bytes:
    """The whole answer, as JSON. created: seconds since 1970."""
    said = call.answer
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None, "refusal": None}
    if said.thinking:
        message["reasoning_content"] = said.thinking
    if said.calls:
        message["tool_calls"] = _calls(call)
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": FINISH_REASONS[said.finish],
        "logprobs": {"content": _logprobs(call, renderer)} if asked.logprobs else None,
    }
    whole: dict[str, Any] = {"choices": [choice], "usage": _usage(call), **_head(asked, call, created)}
    if asked.token_ids:
        choice["token_ids"] = call.turn.response_ids.tolist()
        whole["prompt_token_ids"] = call.turn.prompt_ids.tolist()
    completion = ChatCompletion(object="chat.completion", **whole)
    return completion.model_dump_json(exclude_unset=True).encode()


def events(asked: Asked, call: Call, renderer: Renderer, created: int) -> Iterator[bytes]:
    """The answer as server-sent events. The turn is complete: it comes in pieces for clients that want them."""
    said = call.answer

    def event(delta: dict[str, Any], finish: str | None = None, **rest: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, **rest}
        return _event({"choices": [choice], **({"usage": None} if asked.usage else {}), **head})

    head = {"object": "chat.completion.chunk", **_head(asked, call, created)}
    first = {"prompt_token_ids": call.turn.prompt_ids.tolist()} if asked.token_ids else {}
    yield _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], **first, **head})
    for piece in pieces(said.thinking):
        yield event({"reasoning_content": piece})
    for piece in pieces(said.text):
        yield event({"content": piece})
    for index, each in enumerate(_calls(call)):
        yield event({"tool_calls": [{"index": index, **each, "function": {**each["function"], "arguments": ""}}]})
        for piece in pieces(each["function"]["arguments"]):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    last: dict[str, Any] = {"logprobs": {"content": _logprobs(call, renderer)}} if asked.logprobs else {}
    if asked.token_ids:
        last["token_ids"] = call.turn.response_ids.tolist()
    yield event({}, FINISH_REASONS[said.finish], **last)
    if asked.usage:
        yield _event({"choices": [], "usage": _usage(call), **head})
    yield b"data: [DONE]\n\n"


def error(refused: Refused) -> bytes:
    kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}.get(
        refused.status, "invalid_request_error" if refused.status < 500 else "server_error"
    )
    words = {"message": refused.message, "type": kind, "param": refused.parameter, "code": refused.code}
    return json.dumps({"error": words}).encode()


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + ChatCompletionChunk(**content).model_dump_json(exclude_unset=True).encode() + b"\n\n"


def _head(asked: Asked, call: Call, created: int) -> dict[str, Any]:
    return {"id": PREFIX + call.completion_id, "created": created, "model": asked.model}


def _usage(call: Call) -> dict[str, int]:
    prompt, response = len(call.turn.prompt_ids), len(call.turn.response_ids)
    return {"prompt_tokens": prompt, "completion_tokens": response, "total_tokens": prompt + response}


def _calls(call: Call) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{each.call_id}", "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
        for each in call.answer.calls
    ]


def _logprobs(call: Call, renderer: Renderer) -> list[dict[str, Any]]:
    """Of every sampled token, thinking and calls included."""
    tokens = renderer.token_texts(call.turn.response_ids)
    return [
        {"token": token, "logprob": float(logprob), "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in zip(tokens, call.turn.logprobs, strict=True)
    ]
