"""Anthropic's messages: https://docs.anthropic.com/en/api/messages

Thinking comes as a block of its own, with a signature that clients send back and that means nothing here. Results of tools,
which this protocol puts into the user's messages, are messages of their own to the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
    TEXT_ONLY,
    Fields,
    Serving,
)
from rl_system.endpoint.refusals import Refused
from rl_system.endpoint.requests import TurnRequest, read_arguments

PATH = "/v1/messages"
COUNT_PATH = f"{PATH}/count_tokens"
PREFIX, CALL_PREFIX = "msg_", "toolu_"
"""Of messages' and calls' ids."""
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "stop_text": "stop_sequence"}
ERRORS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
CACHED = {"cache_control": "the prefix cache is always on"}

REQUEST = Fields(
    read=frozenset("messages model max_tokens system stop_sequences stream tools tool_choice temperature metadata".split()),
    harmless={
        "cache_control": "the prefix cache is always on",
        "service_tier": "there is one",
        "speed": "there is one",
        "workspace_id": "a label of the caller's own",
        "user_profile_id": "a label of the caller's own",
        "inference_geo": "everything stays where the run is",
    },
    refused={
        "top_p": ((1,), CHANGES_DISTRIBUTION),
        "top_k": ((-1, 0), CHANGES_DISTRIBUTION),
        "thinking": (({"type": "adaptive"},), EFFORT),
        "output_config": (({},), EFFORT),
        "output_format": ((), NO_SCHEMA),
        "container": ((), NOT_OFFERED),
        "diagnostics": ((), NOT_OFFERED),
        "context_management": ((), NOT_OFFERED),
        "mcp_servers": (([],), NOT_OFFERED),
    },
)
TOOL = Fields(
    frozenset({"name", "description", "input_schema", "type"}),
    CACHED | {
        "strict": "arguments come as the model wrote them, and may be wrong",
        "eager_input_streaming": "arguments come in pieces anyway",
    },
    {"defer_loading": ((False,), NOT_OFFERED), "allowed_callers": ((["direct"],), NOT_OFFERED), "input_examples": (([],), NOT_OFFERED)},
)  # fmt: skip
TOOL_CHOICE = Fields(
    frozenset({"type"}),
    refused={"disable_parallel_tool_use": ((False,), "the model makes as many calls as it likes; use the first one only")},
)
MESSAGE = Fields(frozenset({"role", "content"}))
BLOCKS = {
    "text": Fields(frozenset({"type", "text"}), CACHED, {"citations": (([],), TEXT_ONLY)}),
    "thinking": Fields(frozenset({"type", "thinking"}), {"signature": "nothing here is signed"}),
    "tool_use": Fields(frozenset({"type", "id", "name", "input"}), CACHED | {"caller": "it is always the model"}),
    "tool_result": Fields(frozenset({"type", "tool_use_id", "content", "is_error"}), CACHED),
}
_TEXT = {"text": BLOCKS["text"]}
BLOCKS_OF = {
    "user": _TEXT | {"tool_result": BLOCKS["tool_result"]},
    "assistant": _TEXT | {"thinking": BLOCKS["thinking"], "tool_use": BLOCKS["tool_use"]},
    "system": _TEXT,
}
METADATA = Fields(frozenset({"user_id"}))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was read. replaced_temperature: whether it asked for one that it does not get."""

    request: TurnRequest
    model: str
    stream: bool
    replaced_temperature: bool


def read(body: Any, serving: Serving, known: Known) -> Asked:
    """known: what the session was sent before. Raises Refused for what is not understood or cannot be done."""
    return _read(REQUEST.check(body), serving, known, counted=False)


def read_count(body: Any, serving: Serving, known: Known) -> TurnRequest:
    """The request whose prompt is to be counted; it need not say how long an answer may be. Raises Refused."""
    return _read(REQUEST.check(body), serving, known, counted=True).request


def _read(body: dict[str, Any], serving: Serving, known: Known, *, counted: bool) -> Asked:
    parameters.check_model(body, serving)
    most = parameters.whole_number(body, "max_tokens", 1)
    if most is None and not counted:
        raise Refused("max_tokens is missing; it must be a whole number of at least 1", parameter="max_tokens")
    given = parameters.items(body, "messages")
    if not given:
        raise Refused("messages is empty; it must hold at least one", parameter="messages")
    system = [body["system"]] if "system" in body else []
    opening, opening_digests = known.messages(system, _read_system, ["system"] * len(system))
    messages, digests = known.messages(given, read_message, [f"messages[{index}]." for index in range(len(given))])
    tools, tools_digest = known.tools(parameters.items(body, "tools", []), read_tools)
    return Asked(
        request=TurnRequest(
            messages=opening + messages,
            tools=tools,
            max_tokens=most,
            stop=parameters.stop_texts(body, "stop_sequences"),
            calls=_read_tool_choice(body.get("tool_choice")),
            protocol="messages",
            caller=parameters.text(METADATA.check(body.get("metadata", {}), "metadata."), "user_id", "", "metadata."),
            digests=opening_digests + digests,
            tools_digest=tools_digest,
        ),
        model=serving.model,
        stream=parameters.flag(body, "stream"),
        replaced_temperature=parameters.check_temperature(body, serving),
    )


def read_tools(tools: list[Any]) -> list[dict[str, Any]]:
    read = []
    for tool, where in parameters.offered(tools, (None, "custom"), "tools of one's own"):
        tool = TOOL.check(tool, where)
        function: dict[str, Any] = {"name": parameters.text(tool, "name", where=where)}
        if "description" in tool:
            function["description"] = parameters.text(tool, "description", where=where)
        if not isinstance(tool.get("input_schema"), dict):
            raise Refused(f"{where}input_schema must be a JSON object", parameter=f"{where}input_schema")
        function["parameters"] = tool["input_schema"]
        read.append({"type": "function", "function": function})
    return read


def _read_tool_choice(choice: Any) -> bool:
    if choice is None:
        return True
    kind = TOOL_CHOICE.check(choice, "tool_choice.").get("type")
    if kind not in ("auto", "none"):
        raise Refused(f"tool_choice {kind!r} is not supported: {NO_SCHEMA}; use 'auto' or 'none'", parameter="tool_choice")
    return kind == "auto"


def _read_system(content: Any, where: str) -> list[Message]:
    return [{"role": "system", "content": parameters.texts(content, where, _TEXT)}]


def read_message(message: Any, where: str) -> list[Message]:
    """The messages that one of this protocol stands for: of a user's, every result of a tool is one."""
    message = MESSAGE.check(message, where)
    role = parameters.role(message, BLOCKS_OF, where)
    blocks = parameters.parts(message.get("content"), f"{where}content", BLOCKS_OF[role])
    if role == "assistant":
        return [_read_assistant(blocks)]
    read: list[Message] = []
    texts: list[str] = []
    for block, at in blocks:
        if block["type"] == "text":
            texts.append(parameters.text(block, "text", where=at))
            continue
        if texts:
            read.append({"role": role, "content": "\n".join(texts)})
            texts = []
        read.append(_read_result(block, at))
    if texts or not read:
        read.append({"role": role, "content": "\n".join(texts)})
    return read


def _read_assistant(blocks: list[tuple[dict[str, Any], str]]) -> Message:
    texts, thoughts, calls = [], [], []
    for block, at in blocks:
        match block["type"]:
            case "text":
                texts.append(parameters.text(block, "text", where=at))
            case "thinking":
                thoughts.append(parameters.text(block, "thinking", where=at))
            case "tool_use":
                calls.append(_read_call(block, at))
    message: Message = {"role": "assistant", "content": "\n".join(texts), "reasoning": "\n".join(thoughts)}
    return message | ({"tool_calls": calls} if calls else {})


def _read_call(block: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = block.get("input", {})
    if not isinstance(arguments, dict):
        raise Refused(f"{where}input must be a JSON object", parameter=f"{where}input")
    function = {"name": parameters.text(block, "name", where=where), "arguments": read_arguments(json.dumps(arguments))}
    identity = parameters.text(block, "id", where=where).removeprefix(CALL_PREFIX)
    return {"id": identity, "type": "function", "function": function}


def _read_result(block: dict[str, Any], where: str) -> Message:
    """Whether a result is an error is said in words: templates know of no other way."""
    content = parameters.texts(block.get("content", ""), f"{where}content", _TEXT)
    if parameters.flag(block, "is_error", where=where) and not content.lower().startswith("error"):
        content = f"Error: {content}"
    identity = parameters.text(block, "tool_use_id", where=where).removeprefix(CALL_PREFIX)
    return {"role": "tool", "content": content, "tool_call_id": identity}


def answer(asked: Asked, call: Call, renderer: Renderer, created: int) -> bytes:
    """The whole answer, as JSON."""
    return _json(_message(asked, call) | {"content": _content(call)} | _end(call) | {"usage": _usage(call)})


def count(tokens: int) -> bytes:
    """The answer to a request whose prompt was counted."""
    return _json({"input_tokens": tokens})


def events(asked: Asked, call: Call, renderer: Renderer, created: int) -> Iterator[bytes]:
    """The answer as server-sent events. The turn is complete: it comes in pieces for clients that want them."""
    opening = _message(asked, call) | {"content": [], "stop_reason": None, "stop_sequence": None}
    yield _event({"type": "message_start", "message": opening | {"usage": _usage(call) | {"output_tokens": 0}}})
    for index, block in enumerate(_content(call)):
        begun, deltas = _in_pieces(block)
        yield _event({"type": "content_block_start", "index": index, "content_block": begun})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    yield _event({"type": "message_delta", "delta": _end(call), "usage": _usage(call)})
    yield _event({"type": "message_stop"})


def error(refused: Refused) -> bytes:
    kind = ERRORS.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
    return _json({"type": "error", "error": {"type": kind, "message": refused.message}})


def _message(asked: Asked, call: Call) -> dict[str, Any]:
    return {"id": PREFIX + call.completion_id, "type": "message", "role": "assistant", "model": asked.model}


def _end(call: Call) -> dict[str, Any]:
    return {"stop_reason": STOP_REASONS[call.answer.finish], "stop_sequence": call.answer.stop_text}


def _usage(call: Call) -> dict[str, int]:
    return {"input_tokens": len(call.turn.prompt_ids), "output_tokens": len(call.turn.response_ids)}


def _content(call: Call) -> list[dict[str, Any]]:
    said = call.answer
    blocks: list[dict[str, Any]] = []
    if said.thinking:
        blocks.append({"type": "thinking", "thinking": said.thinking, "signature": call.completion_id})
    if said.text:
        blocks.append({"type": "text", "text": said.text})
    blocks += [
        {"type": "tool_use", "id": CALL_PREFIX + each.call_id, "name": each.name, "input": json.loads(each.arguments)}
        for each in said.calls
    ]
    return blocks


def _in_pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what is added to it."""
    match block["type"]:
        case "thinking":
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [*thoughts, signed]
        case "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        case _:
            spelled = json.dumps(block["input"], ensure_ascii=False)
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(spelled)]


def _event(content: dict[str, Any]) -> bytes:
    return f"event: {content['type']}\ndata: ".encode() + _json(content) + b"\n\n"


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()
