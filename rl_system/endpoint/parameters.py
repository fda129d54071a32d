"""Reading what a client asks for: every field is honoured, harmless for a stated reason, or refused for one.

Invariant: nothing is silently ignored. A field that no protocol file knows is refused by name; null is as good as absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rl_system.endpoint.refusals import Refused

REQUIRED = object()

CHANGES_DISTRIBUTION = (
    "tokens would be drawn from another distribution than the one that is trained; leave it out, or at the value that "
    "changes nothing"
)
ONE_ANSWER = "every call is one turn; ask several times"
NO_SCHEMA = "forcing what is written changes the distribution that is trained; ask for the form in words, and check the answer"
TEXT_ONLY = "the model reads and writes text alone"
NOT_OFFERED = "this endpoint has no such service"
EFFORT = "the model thinks as its chat template lets it; it cannot be told how much"


@dataclass(frozen=True, slots=True)
class Serving:
    """What a session's calls are answered with. model: its name. temperature: of the run; other_temperature: what becomes of a
    call that asks for another one."""

    model: str = "policy"
    temperature: float = 1.0
    other_temperature: Literal["refuse", "replace"] = "refuse"


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one kind of object.

    read: honoured. harmless: of no consequence here, by their reason. refused: by the values that ask for nothing, and why
    anything else cannot be done.
    """

    read: frozenset[str]
    harmless: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)

    def check(self, value: Any, where: str = "") -> dict[str, Any]:
        """`value` without its nulls. where: its path in the request, ending in a dot."""
        if not isinstance(value, dict):
            raise Refused(f"{where.rstrip('.') or 'the request'} must be a JSON object", parameter=where.rstrip(".") or None)
        given = {name: each for name, each in value.items() if each is not None}
        for name, each in given.items():
            if name in self.read or name in self.harmless:
                continue
            neutral, reason = self.refused.get(name, ((), "it is not known here, and nothing is silently ignored"))
            if not any(type(each) is type(other) and each == other or _same_number(each, other) for other in neutral):
                raise Refused(f"{where}{name} {_shown(each)} is not supported: {reason}", parameter=f"{where}{name}")
        return given


def _same_number(a: Any, b: Any) -> bool:
    return all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b)) and a == b


def text(body: dict[str, Any], name: str, default: Any = REQUIRED, where: str = "") -> Any:
    return _of_type(body, name, str, "a string", default, where)


def flag(body: dict[str, Any], name: str, default: bool = False, where: str = "") -> bool:
    return _of_type(body, name, bool, "true or false", default, where)


def items(body: dict[str, Any], name: str, default: Any = REQUIRED, where: str = "") -> list[Any]:
    return _of_type(body, name, list, "an array", default, where)


def offered(tools: list[Any], kinds: tuple[str | None, ...], which: str) -> Iterator[tuple[Any, str]]:
    """`tools`, each with its path in the request. kinds: types that can be offered, and which those are in words."""
    for index, tool in enumerate(tools):
        where = f"tools[{index}]."
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in kinds:
            raise Refused(f"{where}type is {kind!r}; {which} alone can be offered", parameter=f"{where}type")
        yield tool, where


def parts(content: Any, where: str, kinds: Mapping[str, Fields]) -> list[tuple[dict[str, Any], str]]:
    """The parts of `content`, checked, each with its path; a string is one part of the first kind. kinds: by their type, what
    parts there may be."""
    if isinstance(content, str):
        return [({"type": next(iter(kinds)), "text": content}, where)]
    if not isinstance(content, list):
        raise Refused(f"{where} must be a string or an array of parts", parameter=where)
    read = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            allowed = " and ".join(kinds)
            raise Refused(f"{where}[{index}] is of type {_shown(kind)}; {allowed} can be read: {TEXT_ONLY}", parameter=where)
        at = f"{where}[{index}]."
        read.append((kinds[kind].check(part, at), at))
    return read


def texts(content: Any, where: str, kinds: Mapping[str, Fields]) -> str:
    """The texts of `content` as one, on lines of their own. See `parts`."""
    return "\n".join(text(part, "text", where=at) for part, at in parts(content, where, kinds))


def role(message: Any, roles: Collection[str], where: str) -> str:
    """The role of `message`, one of `roles`."""
    given = message.get("role") if isinstance(message, dict) else None
    if not isinstance(given, str) or given not in roles:
        raise Refused(f"{where}role is {_shown(given)}; it must be one of {', '.join(roles)}", parameter=f"{where}role")
    return given


def whole_number(body: dict[str, Any], name: str, least: int | None = None) -> int | None:
    """None where it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise Refused(f"{name} must be a whole number{bound}, not {_shown(value)}", parameter=name)
    return value


def stop_texts(body: dict[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name)
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(texts, list) or not all(isinstance(each, str) and each for each in texts):
        raise Refused(f"{name} must be a text or an array of texts, none of them empty", parameter=name)
    return tuple(texts)


def check_model(body: dict[str, Any], serving: Serving) -> None:
    name = text(body, "model")
    if name != serving.model:
        raise Refused(
            f"the model {name!r} is not served here; the policy that is trained is called {serving.model!r} "
            "(environment.endpoint.model)",
            404, "model_not_found", "model",
        )  # fmt: skip


def check_temperature(body: dict[str, Any], serving: Serving) -> bool:
    """Whether another temperature than the run's was asked for, which is then replaced."""
    value = body.get("temperature")
    if value is None or _same_number(value, serving.temperature):
        return False
    if serving.other_temperature == "refuse":
        raise Refused(
            f"temperature {_shown(value)} is not the run's: all turns are sampled, and trained, at "
            f"rollout.sampling.temperature {serving.temperature:g}; leave it out, or set "
            "environment.endpoint.other_temperature to 'replace'",
            parameter="temperature",
        )
    return True


def _of_type(body: dict[str, Any], name: str, kind: type, what: str, default: Any, where: str) -> Any:
    value = body.get(name)
    if value is None:
        if default is REQUIRED:
            raise Refused(f"{where}{name} is missing; it must be {what}", parameter=f"{where}{name}")
        return default
    if not isinstance(value, kind):
        raise Refused(f"{where}{name} must be {what}, not {_shown(value)}", parameter=f"{where}{name}")
    return value


def _shown(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
