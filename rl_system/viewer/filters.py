"""Filters of episodes: the same names in a page's address, in the JSON API and here, turned into SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_system.errors import UserError

FROM = "episodes e LEFT JOIN trained t ON t.grp = e.grp"
STALENESS = "(t.step - 1 - e.version_min)"
"""Policy updates between an episode's oldest token and the update that trained on it."""
TEXTS = {name: f"e.{name}" for name in ("environment", "task", "domain", "split", "ended")}
LEAST = {
    "reward_min": "e.reward >=",
    "reward_max": "e.reward <=",
    "errors_min": "e.errors >=",
    "turns_min": "e.turns >=",
    "turns_max": "e.turns <=",
    "staleness_min": f"{STALENESS} >=",
    "step": "t.step =",
    "evaluation": "e.evaluation =",
    "group": "e.grp =",
}
FLAGS = {
    "trained": "t.step IS NOT NULL",
    "dropped": "e.dropped IS NOT NULL",
    "evaluated": "e.evaluation IS NOT NULL",
    "failed": "e.failure IS NOT NULL",
}
SORTS = {
    "newest": "e.at DESC, e.id DESC",
    "oldest": "e.at, e.id",
    "reward": "e.reward DESC, e.id DESC",
    "-reward": "e.reward, e.id DESC",
    "turns": "e.turns DESC, e.id DESC",
    "tokens": "e.tokens DESC, e.id DESC",
    "errors": "e.errors DESC, e.id DESC",
    "seconds": "e.seconds DESC, e.id DESC",
    "staleness": f"{STALENESS} DESC, e.id DESC",
    "advantage": "e.advantage DESC, e.id DESC",
    "-advantage": "e.advantage, e.id DESC",
}
MOST = 1000
"""Episodes of one answer."""
OTHERS = ("q", "version", "sort", "offset", "limit")


@dataclass(frozen=True, slots=True)
class Filters:
    """where: an SQL condition over `FROM`, with `values`. order: what SQL sorts by."""

    where: str
    values: tuple[Any, ...]
    order: str
    offset: int
    limit: int


def read_filters(given: Mapping[str, str]) -> Filters:
    """UserError for a name that is no filter, or a value that it cannot have. An empty value filters nothing."""
    conditions, values = ["1"], []
    for name, text in given.items():
        if text == "" and name not in FLAGS:
            continue
        if name in TEXTS:
            conditions.append(f"{TEXTS[name]} = ?")
            values.append(text)
        elif name in LEAST:
            conditions.append(f"{LEAST[name]} ?")
            values.append(_number(name, text))
        elif name in FLAGS:
            if text not in ("true", "false", ""):
                raise UserError(f"{name} is {text!r}; give true or false")
            if text:
                conditions.append(FLAGS[name] if text == "true" else f"NOT ({FLAGS[name]})")
        elif name == "version":
            conditions.append("? BETWEEN e.version_min AND e.version_max")
            values.append(_number(name, text))
        elif name == "q":
            if match := _match(text):
                conditions.append("e.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
                values.append(match)
        elif name not in OTHERS:
            known = ", ".join([*TEXTS, *LEAST, *FLAGS, *OTHERS])
            raise UserError(f"{name} is no filter; there are {known}")
    sort = given.get("sort") or "newest"
    if sort not in SORTS:
        raise UserError(f"sort is {sort!r}; give one of {', '.join(SORTS)}")
    offset, limit = (_whole(name, given.get(name) or default) for name, default in (("offset", "0"), ("limit", "100")))
    return Filters(" AND ".join(conditions), tuple(values), SORTS[sort], offset, min(limit, MOST))


def _match(text: str) -> str:
    """A full-text query for episodes with all words of `text`, each the beginning of one; words in quotes stand
    together.
    """
    parts, phrases = text.replace("\0", " ").split('"'), []
    for position, part in enumerate(parts):
        phrases += [part] if position % 2 else part.split()
    # A phrase without a letter or figure has no word to look for.
    return " ".join(f'"{phrase}"*' for phrase in phrases if any(each.isalnum() or each == "_" for each in phrase))


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{name} is {text!r}; give a number")
    return value


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UserError(f"{name} is {text!r}; give a whole number from 0 on")
    return int(text)
