"""What of an episode's line can be filtered and sorted by: one row of the index."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

COLUMNS = (
    "key",
    "grp",
    "idx",
    "evaluation",
    "environment",
    "domain",
    "task",
    "split",
    "reward",
    "advantage",
    "ended",
    "turns",
    "tokens",
    "errors",
    "version_min",
    "version_max",
    "seconds",
    "dropped",
    "failure",
    "at",
)
ERRORS = ("tool_errors", "malformed_calls", "evaluator_errors")
"""Counts of an episode that make up its `errors`."""
WORDS_KEPT = 400_000
"""Characters of an episode that a search sees."""


def row_of(line: Mapping[str, Any], file: Mapping[str, str | None], number: int, at: float) -> dict[str, Any] | None:
    """A row with `COLUMNS`; None for an object that is no episode. file: the numbers in its file's name. number: its
    line, from 0. at: seconds since the epoch when it was written.
    """
    task, turns = line.get("task"), line.get("turns")
    if not isinstance(task, dict) or not isinstance(turns, list) or not isinstance(line.get("transcript"), list):
        return None
    evaluation = int(file["evaluation"]) if file.get("evaluation") else None
    index = line.get("index")
    if evaluation is not None:
        group, key = None, f"e{evaluation}.{number}"
    else:
        group = int(file["group"])
        index = index if isinstance(index, int) else number
        key = f"g{group:06}.{index}"
    turns = [turn for turn in turns if isinstance(turn, dict)]
    versions = [each for turn in turns for each in _list(turn, "versions") if isinstance(each, int) and each >= 0]
    counts, timings = _dict(line, "counts"), _dict(line, "timings")
    failure = _dict(line, "failure")
    return {
        "key": key,
        "grp": group,
        "idx": index if isinstance(index, int) else number,
        "evaluation": evaluation,
        **{
            column: str(task.get(name, ""))
            for column, name in (
                ("environment", "environment"),
                ("domain", "domain"),
                ("task", "task_id"),
                ("split", "split"),
            )
        },
        "reward": number_of(line.get("reward")),
        "advantage": number_of(line.get("advantage")),
        "ended": str(line.get("ended", "")),
        "turns": len(turns),
        "tokens": sum(len(_list(turn, "response_ids")) for turn in turns),
        "errors": sum(int(number_of(counts.get(name)) or 0) for name in ERRORS),
        "version_min": min(versions, default=None),
        "version_max": max(versions, default=None),
        "seconds": number_of(timings.get("total")),
        "dropped": str(line["dropped"]) if line.get("dropped") else None,
        "failure": f"{failure.get('of')}: {failure.get('what')}" if failure else None,
        "at": at,
    }


def words_of(line: Mapping[str, Any]) -> str:
    """What a reader of the transcript sees, and the task's name."""
    parts = [str(line["task"].get("task_id", ""))]
    for message in line["transcript"]:
        if isinstance(message, dict):
            parts += [_words(message.get(name)) for name in ("content", "reasoning", "reasoning_content", "tool_calls")]
    return "\n".join(part for part in parts if part)[:WORDS_KEPT]


def number_of(value: Any) -> float | None:
    """A finite number, or None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _words(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _list(values: Mapping[str, Any], name: str) -> list[Any]:
    found = values.get(name)
    return found if isinstance(found, list) else []


def _dict(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}
