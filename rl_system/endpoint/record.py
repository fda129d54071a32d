"""What is left of an agent's calls when its episode is over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rl_system.endpoint.calls import Call
from rl_system.records import Turn


@dataclass(slots=True)
class SessionRecord:
    """turns: of the calls that were answered. parents: see `Episode`. completions: the id that a client was given for each,
    without what a protocol puts before it. transcript: every call's new messages and its answer. counts: events by name.
    failure: why a call could not be answered, if ever one could not."""

    turns: list[Turn] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    completions: list[str] = field(default_factory=list)
    transcript: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    failure: str | None = None


def record_of(calls: list[Call], counts: Counter[str], failure: str | None, *, ordered: bool) -> SessionRecord:
    """calls: in any order. ordered: by the tree of calls and their prompts, so that no order tells what was faster; else in
    the order in which they came."""
    calls = _by_tree(calls) if ordered else sorted(calls, key=lambda call: call.number)
    position = {id(call): index for index, call in enumerate(calls)}
    extended: set[int] = set()
    transcript: list[dict[str, Any]] = []
    for index, call in enumerate(calls):
        parent = None if call.parent is None else position[id(call.parent)]
        transcript += _lines(call, index, parent, branches_off=parent in extended)
        extended |= set() if parent is None else {parent}
    return SessionRecord(
        turns=[call.turn for call in calls],
        parents=[-1 if call.parent is None else position[id(call.parent)] for call in calls],
        completions=[call.completion_id for call in calls],
        transcript=transcript,
        counts={name: count for name, count in counts.items() if count},
        failure=failure,
    )


def _by_tree(calls: list[Call]) -> list[Call]:
    """Each call before those that go on from it, depth first; of several, by prompt and repeat."""
    children: dict[int | None, list[Call]] = {}
    for call in calls:
        children.setdefault(call.parent and id(call.parent), []).append(call)
    ordered, waiting = [], [None]
    while waiting:
        parent = waiting.pop()
        if parent is not None:
            ordered.append(parent)
        below = children.get(parent and id(parent), ())
        waiting += sorted(below, key=lambda call: (call.turn.prompt_ids.tobytes(), call.repeat), reverse=True)
    return ordered


def _lines(call: Call, index: int, parent: int | None, *, branches_off: bool) -> list[dict[str, Any]]:
    """The call's part of the transcript: what came that its parent had not, and what was answered. branches_off: whether an
    earlier call goes on from the same parent."""
    came = [{"call": index, **message} for message in call.request.messages[call.opening :]]
    answer = call.answer
    said: dict[str, Any] = {
        "call": index, "goes_on_from": parent, "id": call.completion_id, "protocol": call.request.protocol,
        "role": "assistant", "content": answer.text,
    }  # fmt: skip
    if call.request.caller:
        said["caller"] = call.request.caller
    if branches_off:
        said["branches_off"] = True
    if call.edited:
        said["edited_history"] = True
    if answer.thinking:
        said["thinking"] = answer.thinking
    if answer.calls:
        said["tool_calls"] = answer.as_message()["tool_calls"]
    return [*came, said]
