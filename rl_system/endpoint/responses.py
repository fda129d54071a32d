"""OpenAI's responses: https://platform.openai.com/docs/api-reference/responses

Nothing is stored: every request holds the whole conversation as its input, which is how a conversation can branch. An answer
is a reasoning item, a message and calls of functions, each where there is one; given back in that order, they are one message
of the assistant again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from envs.protocol import Message
from rl_system.chat.renderer import Renderer
from rl_system.endpoint import chat_completions, parameters
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

PATH = "/v1/responses"
PREFIX = "resp_"
"""Of responses' ids."""
STATELESS = "nothing is stored; send the whole conversation as input"

REQUEST = Fields(
    read=frozenset(
        "input model instructions max_output_tokens stream tools tool_choice temperature user reasoning text include "
        "metadata stream_options".split()
    ),
    harmless={
        "store": "nothing is stored beyond the run's own transcripts",
        "service_tier": "there is one",
        "prompt_cache_key": "an episode keeps to one engine, and to its prefix cache, anyway",
        "prompt_cache_options": "the prefix cache is always on",
        "prompt_cache_retention": "the prefix cache is always on",
        "safety_identifier": "a label of the caller's user",
    },
    refused={
        "top_p": ((1,), CHANGES_DISTRIBUTION),
        "top_logprobs": ((0,), "the engine tells the sampled tokens' logprobs alone"),
        "parallel_tool_calls": ((True,), "the model makes as many calls as it likes; use the first one only, if you must"),
        "previous_response_id": ((), STATELESS),
        "conversation": ((), STATELESS),
        "background": ((False,), NOT_OFFERED),
        "background_options": ((), NOT_OFFERED),
        "access_programs": ((), NOT_OFFERED),
        "image": ((), TEXT_ONLY),
        "prompt": ((), NOT_OFFERED),
        "max_tool_calls": ((), "tools are the caller's own"),
        "truncation": (("disabled",), "what the model sees is what was sent"),
        "context_management": (([],), "what the model sees is what was sent"),
        "moderation": ((), NOT_OFFERED),
    },
)
REASONING = Fields(
    frozenset(),
    {"summary": "thinking is given whole", "generate_summary": "thinking is given whole", "context": "what came back is read"},
    {"effort": ((), EFFORT), "mode": ((), EFFORT)},
)
TEXT = Fields(frozenset(), refused={"format": (({"type": "text"},), NO_SCHEMA), "verbosity": ((), EFFORT)})
INCLUDED = ("reasoning.encrypted_content",)
"""What may be asked to be included: thinking is given whole, so there is nothing left to hide."""
STREAM = Fields(frozenset(), {"include_obfuscation": "the connection stays on this machine"})
TOOL = Fields(
    frozenset({"type", "name", "description", "parameters"}),
    {"strict": "arguments come as the model wrote them, and may be wrong"},
    {"defer_loading": ((False,), NOT_OFFERED), "allowed_callers": ((), NOT_OFFERED), "output_schema": ((), NO_SCHEMA)},
)
_LABELS = {"id": "a label", "status": "an item that is sent is complete"}
ITEMS = {
    "message": Fields(frozenset({"type", "role", "content"}), _LABELS | {"phase": "a label"}),
    "function_call": Fields(
        frozenset({"type", "call_id", "name", "arguments"}), _LABELS | {"caller": "a label", "namespace": "a label"}
    ),
    "function_call_output": Fields(frozenset({"type", "call_id", "output"}), _LABELS | {"caller": "a label"}),
    "reasoning": Fields(
        frozenset({"type", "content"}),
        _LABELS | {"encrypted_content": "none is given", "summary": "thinking comes back as content"},
    ),
}
ROLES = ("system", "developer", "user", "assistant")
PARTS = {
    "input_text": Fields(frozenset({"type", "text"}), {"prompt_cache_breakpoint": "the prefix cache is always on"}),
    "output_text": Fields(
        frozenset({"type", "text"}), {"logprobs": "those of the turn are known"}, {"annotations": (([],), TEXT_ONLY)}
    ),
    "reasoning_text": Fields(frozenset({"type", "text"})),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was read. echoed: its fields that a response repeats. replaced_temperature: whether it asked for one
    that it does not get."""

    request: TurnRequest
    model: str
    stream: bool
    echoed: dict[str, Any]
    replaced_temperature: bool


def read(body: Any, serving: Serving, known: Known) -> Asked:
    """known: what the session was sent before. Raises Refused for what is not understood or cannot be done."""
    body = REQUEST.check(body)
    parameters.check_model(body, serving)
    REASONING.check(body.get("reasoning", {}), "reasoning.")
    TEXT.check(body.get("text", {}), "text.")
    STREAM.check(body.get("stream_options", {}), "stream_options.")
    for name in parameters.items(body, "include", []):
        if name not in INCLUDED:
            raise Refused(f"include {name!r} is not supported: logprobs are given by chat completions", parameter="include")
    messages, digests = read_input(body.get("input"), known)
    instructions = [body["instructions"]] if "instructions" in body else []
    opening, opening_digests = known.messages(instructions, _read_instructions, ["instructions"] * len(instructions))
    offered = parameters.items(body, "tools", [])
    tools, tools_digest = known.tools(offered, read_tools)
    return Asked(
        request=TurnRequest(
            messages=opening + messages,
            tools=tools,
            max_tokens=parameters.whole_number(body, "max_output_tokens", 1),
            calls=chat_completions.read_tool_choice(body.get("tool_choice")),
            protocol="responses",
            caller=parameters.text(body, "user", ""),
            digests=opening_digests + digests,
            tools_digest=tools_digest,
        ),
        model=serving.model,
        stream=parameters.flag(body, "stream"),
        echoed={
            "instructions": body.get("instructions"),
            "tools": offered,
            "tool_choice": body.get("tool_choice", "auto"),
            "parallel_tool_calls": True,
            "temperature": serving.temperature,
            "top_p": 1.0,
            "metadata": body.get("metadata", {}),
            "max_output_tokens": body.get("max_output_tokens"),
        },
        replaced_temperature=parameters.check_temperature(body, serving),
    )


def read_tools(tools: list[Any]) -> list[dict[str, Any]]:
    read = []
    for tool, where in parameters.offered(tools, ("function",), "tools of type 'function'"):
        function = TOOL.check(tool, where)
        parameters.text(function, "name", where=where)
        kept = {name: value for name, value in function.items() if name not in ("type", "strict")}
        read.append({"type": "function", "function": kept})
    return read


def _read_instructions(instructions: Any, where: str) -> list[Message]:
    return [{"role": "system", "content": parameters.text({where: instructions}, where)}]


def read_input(given: Any, known: Known) -> tuple[list[Message], list[bytes]]:
    """The messages, and their digests."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise Refused("input must be a text or an array of at least one item", parameter="input")
    starts = [0]
    while (end := _end_of_answer(given, starts[-1])) < len(given):
        starts.append(end)
    return known.messages([given[start:end] for start, end in pairwise([*starts, len(given)])], _read_items, starts)


def _end_of_answer(given: list[Any], start: int) -> int:
    """Where the answer of the assistant ends whose items begin at `start`: thinking, then words, then calls. Any other item
    is alone."""
    end, latest = start, -1
    while end < len(given) and (order := _order(given[end])) is not None:
        if order < latest or order == latest != CALL:
            break
        end, latest = end + 1, order
    return max(end, start + 1)


CALL = 2


def _order(item: Any) -> int | None:
    """The place of an item in an answer; None for what is in none."""
    if not isinstance(item, dict):
        return None
    match item.get("type", "message"):
        case "reasoning":
            return 0
        case "message" if item.get("role") == "assistant":
            return 1
        case "function_call":
            return CALL
    return None


def _read_items(items: list[Any], first: int) -> list[Message]:
    """The message that `items` are: an answer's, or the only one. first: position of the first in the input."""
    answer: Message = {"role": "assistant", "content": "", "reasoning": ""}
    for index, item in enumerate(items, first):
        where = f"input[{index}]."
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if not isinstance(kind, str) or kind not in ITEMS:
            why = STATELESS if kind == "item_reference" else TEXT_ONLY
            raise Refused(f"{where}type is {kind!r}; {', '.join(ITEMS)} are read: {why}", parameter=f"{where}type")
        item = ITEMS[kind].check(item, where)
        if kind == "function_call_output":
            return [_read_output(item, where)]
        if kind == "message" and item.get("role") != "assistant":
            return [_read_message(item, where)]
        _add_to_answer(answer, kind, item, where)
    return [answer]


def _add_to_answer(answer: Message, kind: str, item: dict[str, Any], where: str) -> None:
    match kind:
        case "reasoning":
            answer["reasoning"] = parameters.texts(item.get("content", []), f"{where}content", PARTS)
        case "message":
            answer["content"] = parameters.texts(item.get("content"), f"{where}content", PARTS)
        case "function_call":
            arguments = read_arguments(parameters.text(item, "arguments", "", where))
            function = {"name": parameters.text(item, "name", where=where), "arguments": arguments}
            identity = parameters.text(item, "call_id", where=where).removeprefix("call_")
            answer.setdefault("tool_calls", []).append({"id": identity, "type": "function", "function": function})


def _read_message(item: dict[str, Any], where: str) -> Message:
    role = parameters.role(item, ROLES, where)
    return {"role": "system" if role == "developer" else role, "content": parameters.texts(item.get("content"), f"{where}content", PARTS)}


def _read_output(item: dict[str, Any], where: str) -> Message:
    identity = parameters.text(item, "call_id", where=where).removeprefix("call_")
    return {"role": "tool", "content": parameters.texts(item.get("output"), f"{where}output", PARTS), "tool_call_id": identity}


def answer(asked: Asked, call: Call, renderer: Renderer, created: int) -> bytes:
    """The whole answer, as JSON. created: seconds since 1970."""
    return json.dumps(_response(asked, call, created, _output(call)), ensure_ascii=False).encode()


def events(asked: Asked, call: Call, renderer: Renderer, created: int) -> Iterator[bytes]:
    """The answer as server-sent events. The turn is complete: it comes in pieces for clients that want them."""
    for number, event in enumerate(_events(asked, call, created)):
        data = json.dumps(event | {"sequence_number": number}, ensure_ascii=False)
        yield f"event: {event['type']}\ndata: {data}\n\n".encode()


error = chat_completions.error


def _events(asked: Asked, call: Call, created: int) -> Iterator[dict[str, Any]]:
    begun = _response(asked, call, created, []) | {"status": "in_progress", "incomplete_details": None, "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(_output(call)):
        at = {"item_id": item["id"], "output_index": index}
        empty = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        yield {"type": "response.output_item.added", "output_index": index, "item": item | empty | {"status": "in_progress"}}
        yield from _item_events(item, at)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    done = _response(asked, call, created, _output(call))
    yield {"type": f"response.{done['status']}", "response": done}


def _item_events(item: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match item["type"]:
        case "function_call":
            for piece in pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.done", **at, **done}
        case kind:
            (part,) = item["content"]
            what, rest = ("output_text", {"logprobs": []}) if kind == "message" else ("reasoning_text", {})
            at = at | {"content_index": 0}
            yield {"type": "response.content_part.added", **at, "part": part | {"text": ""}}
            for piece in pieces(part["text"]):
                yield {"type": f"response.{what}.delta", **at, "delta": piece, **rest}
            yield {"type": f"response.{what}.done", **at, "text": part["text"], **rest}
            yield {"type": "response.content_part.done", **at, "part": part}


def _response(asked: Asked, call: Call, created: int, output: list[dict[str, Any]]) -> dict[str, Any]:
    cut = call.answer.finish == "length"
    prompt, sampled = len(call.turn.prompt_ids), len(call.turn.response_ids)
    return {
        "id": PREFIX + call.completion_id, "object": "response", "created_at": created, "model": asked.model,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None, "output": output, **asked.echoed,
        "usage": {
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + sampled,
        },
    }  # fmt: skip


def _output(call: Call) -> list[dict[str, Any]]:
    said, identity = call.answer, call.completion_id
    status = "incomplete" if said.finish == "length" else "completed"
    items: list[dict[str, Any]] = []
    if said.thinking:
        content = [{"type": "reasoning_text", "text": said.thinking}]
        items.append({"id": f"rs_{identity}", "type": "reasoning", "summary": [], "content": content, "status": status})
    if said.text or not said.calls:
        content = [{"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}]
        items.append({"id": f"msg_{identity}", "type": "message", "role": "assistant", "content": content, "status": status})
    items += [
        {
            "id": f"fc_{each.call_id}", "type": "function_call", "call_id": f"call_{each.call_id}", "name": each.name,
            "arguments": each.arguments, "status": status,
        }
        for each in said.calls
    ]  # fmt: skip
    return items
