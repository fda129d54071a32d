"""One episode for reading: its messages, and its tokens with what the run keeps of each."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

from rl_system.viewer.rows import number_of
from rl_system.viewer.token_texts import TokenTexts

ALIGNED_PAIRS = 9_000_000
"""Two stretches are aligned token by token up to this product of their lengths; beyond, they stand whole."""


def turns_of(line: dict[str, Any], texts: TokenTexts | None) -> list[dict[str, Any]]:
    """The turns of an episode's line. `context_ids`: what the prompt added to the turn it extends; `context` and
    `response`: the tokens' texts, where there is a tokenizer.
    """
    found = []
    for turn in filter(lambda each: isinstance(each, dict), line.get("turns", [])):
        context, response = _ids(turn, "prompt_ids"), _ids(turn, "response_ids")
        found.append(
            {
                "goes_on_from": turn.get("goes_on_from"),
                "prompt_extends": turn.get("prompt_extends"),
                "finish_reason": turn.get("finish_reason"),
                "reward": number_of(turn.get("reward")),
                "advantage": number_of(turn.get("advantage")),
                "context_ids": context,
                "response_ids": response,
                "context": texts.of(context) if texts else None,
                "response": texts.of(response) if texts else None,
                "logprobs": [number_of(each) for each in turn.get("logprobs") or []],
                "versions": [each if isinstance(each, int) else None for each in turn.get("versions") or []],
            }
        )
    return found


def whole_sequence(line: dict[str, Any], turn: int = -1) -> list[dict[str, Any]]:
    """Tokens from the first to the last of a turn: `id`, and of a sampled one `turn`, `logprob` and `version`."""
    turns = [each for each in line.get("turns", []) if isinstance(each, dict)]
    if not turns:
        return []
    chain, at = [], turn % len(turns)
    while isinstance(at, int) and 0 <= at < len(turns) and at not in chain:
        chain.append(at)
        at = turns[at].get("prompt_extends")
    tokens: list[dict[str, Any]] = []
    for number in reversed(chain):
        each = turns[number]
        tokens += [{"id": token} for token in _ids(each, "prompt_ids")]
        logprobs, versions = each.get("logprobs") or [], each.get("versions") or []
        for position, token in enumerate(_ids(each, "response_ids")):
            tokens.append(
                {
                    "id": token,
                    "turn": number,
                    "logprob": number_of(logprobs[position]) if position < len(logprobs) else None,
                    "version": versions[position] if position < len(versions) else None,
                }
            )
    return tokens


def comparable_turns(a: dict[str, Any], b: dict[str, Any]) -> tuple[int, int]:
    """Whose sequences tell two episodes apart: the last turns that go on from the first turn in which they differ. An
    episode with branches has turns that say nothing of each other.
    """
    ids = [[[each["id"] for each in whole_sequence(line, turn)] for turn in range(_count(line))] for line in (a, b)]
    first = next((turn for turn, (left, right) in enumerate(zip(*ids, strict=False)) if left != right), None)
    if first is None:
        return _count(a) - 1, _count(b) - 1
    return _last_after(ids[0], first), _last_after(ids[1], first)


def difference(
    a: list[dict[str, Any]], b: list[dict[str, Any]], texts: TokenTexts | None, before: int = 60
) -> dict[str, Any]:
    """Two sequences from where they part. `common`: tokens that both begin with; `tail`: the last `before` of them;
    `parts`: what follows, aligned: `same` or not, with the tokens of each. `parted_at`: both tokens there, None where a
    side ends.
    """
    common = 0
    for left, right in zip(a, b, strict=False):
        if left["id"] != right["id"]:
            break
        common += 1
    rest_a, rest_b = a[common:], b[common:]
    aligned = len(rest_a) * len(rest_b) <= ALIGNED_PAIRS
    parts = []
    if aligned:
        matcher = SequenceMatcher(
            None, [each["id"] for each in rest_a], [each["id"] for each in rest_b], autojunk=False
        )
        for kind, a0, a1, b0, b1 in matcher.get_opcodes():
            parts.append({"same": kind == "equal", "a": rest_a[a0:a1], "b": rest_b[b0:b1]})
    elif rest_a or rest_b:
        parts.append({"same": False, "a": rest_a, "b": rest_b})
    tail = a[max(0, common - before) : common]
    if texts is not None:
        for each in [*tail, *rest_a, *rest_b]:
            each["text"] = texts.of([each["id"]])[0]
    parted = [rest[0] if rest else None for rest in (rest_a, rest_b)]
    return {
        "common": common,
        "tail": tail,
        "parted_at": parted,
        "parts": parts,
        "aligned": aligned,
        "tokens": [len(a), len(b)],
    }


def _count(line: dict[str, Any]) -> int:
    return sum(isinstance(each, dict) for each in line.get("turns", []))


def _last_after(turns: list[list[int]], first: int) -> int:
    """The last of `turns` that begins with all of turn `first`."""
    begin = turns[first]
    return max(turn for turn in range(first, len(turns)) if turns[turn][: len(begin)] == begin)


def _ids(turn: dict[str, Any], name: str) -> list[int]:
    found = turn.get(name)
    return [each if isinstance(each, int) else -1 for each in found] if isinstance(found, list) else []
