"""From the text of a response to what the agent said, thought and called; and from calls back to text.

Formats, by `model.tool_format`:

    hermes, qwen3   <tool_call>{"name": …, "arguments": {…}}</tool_call>, any number, with words around them
    llama3          the whole message is {"name": …, "parameters": {…}}; several are separated by `;`, and
                    `<|python_tag|>` may stand before them
    json            the whole message (or a ```json block) is one object with name and arguments, or a list of them

What vLLM's parsers of these formats read is read alike; but those need vLLM in every process, and take a response with one
broken call for mere words.

Reading never raises and works on a response that was cut anywhere: what is not a well-formed call becomes a
`MalformedCall` whose reason the agent is shown. Thinking (up to the last `</think>`, or from a `<think>` that never
closes) is neither said nor searched for calls.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from envs.protocol import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
MAX_DIGITS = 308
"""Of a whole number in a call: as many as the largest number with a point has."""
MAX_DEPTH = 32
"""Of lists and objects in a call. Templates, tools and files that it ends up in go through it by recursion."""
_FENCE = re.compile(r"^```(?:json)?\s*\n(.*?)\n?```$", re.DOTALL)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{_shown(digits)} is larger than any number that can be computed with")
    return value


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"{_shown(digits)} has more than {MAX_DIGITS} digits")
    return int(digits)


def _shown(digits: str) -> str:
    return digits if len(digits) <= 24 else f"{digits[:20]}…"


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole)


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """Something that was meant as a call and is none. `reason` is written for the agent."""

    reason: str


@dataclass(frozen=True, slots=True)
class Response:
    """thinking: without its tags. text: what a user may see. calls: in the order in which they were written."""

    thinking: str
    text: str
    calls: tuple[ToolCall | MalformedCall, ...]


def parse_response(text: str, tool_format: str) -> Response:
    """Take apart the text of a response, without its end-of-turn token."""
    thinking, visible = split_thinking(text)
    said, calls = _READERS[tool_format](visible)
    return Response(thinking, said.strip(), tuple(calls))


def split_thinking(text: str) -> tuple[str, str]:
    """`(thinking, visible)`. Some templates open the thinking in the prompt, so that only its end is in the
    response."""
    thinking, end, visible = text.rpartition("</think>")
    visible, unclosed, rest = visible.partition("<think>")
    return (thinking.replace("<think>", "").replace("</think>", "") + rest).strip(), visible


def write_calls(calls: list[ToolCall] | tuple[ToolCall, ...], tool_format: str) -> str:
    """The text with which a model of this format makes `calls`: what `parse_response` reads back."""
    if tool_format in ("hermes", "qwen3"):
        return "\n".join(f"{OPEN}\n{_as_json(call, 'arguments')}\n{CLOSE}" for call in calls)
    if tool_format == "llama3":
        return "; ".join(_as_json(call, "parameters") for call in calls)
    parts = [_as_json(call, "arguments") for call in calls]
    return "".join(parts) if len(parts) < 2 else f"[{', '.join(parts)}]"


def _as_json(call: ToolCall, arguments: str) -> str:
    return json.dumps({"name": call.name, arguments: call.arguments}, ensure_ascii=False)


def _read_tagged(text: str) -> tuple[str, list[ToolCall | MalformedCall]]:
    said, calls = [], []
    while OPEN in text:
        before, _, rest = text.partition(OPEN)
        said.append(before)
        # JSON says by itself where it ends, so that tags inside an argument are part of the argument.
        value, after = _leading_json(rest.lstrip())
        after = after.lstrip()
        if not isinstance(value, MalformedCall) and (not after or after.startswith((OPEN, CLOSE))):
            calls.append(_checked(value, ("arguments",)))
            text = after.removeprefix(CLOSE)
            continue
        # Otherwise a call ends at its tag; where the tag is missing, at the next call.
        body, closed, text = _cut_at_tag(rest)
        calls.append(_why_malformed(body) if closed else MalformedCall(f"the call is not closed by {CLOSE}"))
    if CLOSE in text:
        calls.append(MalformedCall(f"{CLOSE} without {OPEN} before the call"))
        text = ""
    return "".join([*said, text]), calls


def _cut_at_tag(text: str) -> tuple[str, bool, str]:
    """What stands before the first tag, whether that is the closing one, and what follows it."""
    tag = re.search(f"{re.escape(CLOSE)}|(?={re.escape(OPEN)})", text)
    return (text[: tag.start()], tag[0] == CLOSE, text[tag.end() :]) if tag else (text, False, "")


def _why_malformed(body: str) -> MalformedCall:
    value, _ = _leading_json(body.strip())
    if isinstance(value, MalformedCall):
        return value
    return MalformedCall("there is text after the JSON object of the call")


def _read_llama3(text: str) -> tuple[str, list[ToolCall | MalformedCall]]:
    said, body = "", text
    if not text.lstrip().startswith("{"):
        said, tag, body = text.partition(PYTHON_TAG)
        if not tag:
            return text, []
    calls: list[ToolCall | MalformedCall] = []
    body = body.strip()
    while body:
        value, rest = _leading_json(body)
        calls.append(value if isinstance(value, MalformedCall) else _checked(value, ("parameters", "arguments")))
        body = rest.lstrip().removeprefix(";").lstrip()
    return said, calls


def _read_json(text: str) -> tuple[str, list[ToolCall | MalformedCall]]:
    body = text.strip()
    fenced = _FENCE.match(body)
    body = fenced.group(1).strip() if fenced else body
    if not body.startswith(("{", "[")):
        return text, []
    value, rest = _leading_json(body)
    if isinstance(value, MalformedCall):
        return "", [value]
    calls: list[ToolCall | MalformedCall] = [
        _checked(each, ("arguments", "parameters")) for each in (value if isinstance(value, list) else [value])
    ]
    if rest.strip():
        calls.append(MalformedCall("there is text after the JSON of the call"))
    return "", calls


_READERS = {"hermes": _read_tagged, "qwen3": _read_tagged, "llama3": _read_llama3, "json": _read_json}


def _leading_json(body: str) -> tuple[Any, str]:
    """The JSON value at the start of `body` and what follows it; a MalformedCall, and nothing, where there is none."""
    try:
        value, end = _DECODER.raw_decode(body)
        # Escapes can spell half a surrogate pair, which no tool, hash or tokenizer downstream can encode.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        return MalformedCall(f"the call is not valid JSON ({error})"), ""
    except RecursionError:
        return MalformedCall("the call is nested too deeply"), ""
    if _is_deeper(value, MAX_DEPTH):
        return MalformedCall(f"the call is nested more than {MAX_DEPTH} levels deep"), ""
    return value, body[end:]


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects in `value` lie inside each other more than `depth` times."""
    level = [value]
    for _ in range(depth + 1):
        level = [
            inner for each in level if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]  # fmt: skip
    return bool(level)


def _checked(value: Any, argument_names: tuple[str, ...]) -> ToolCall | MalformedCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MalformedCall('a call is a JSON object with a "name" and "arguments"')
    arguments = next((value[name] for name in argument_names if name in value), {})
    if not isinstance(arguments, dict):
        return MalformedCall(f"the {argument_names[0]} of a call are a JSON object, not {type(arguments).__name__}")
    return ToolCall(value["name"], arguments)
