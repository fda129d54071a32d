"""Answers of the viewer as plain values, by run: what pages show and programs ask for.

Invariant: nothing here knows of HTTP. What is not there is `NotFound`, what was asked wrongly a `UserError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_system.errors import UserError
from rl_system.tracking.names import describe
from rl_system.viewer.filters import FROM, STALENESS, read_filters
from rl_system.viewer.index import cache_directory
from rl_system.viewer.live_run import CLOCK, LiveRun
from rl_system.viewer.runs import find_runs
from rl_system.viewer.token_texts import TokenTexts, newest_tokenizer
from rl_system.viewer.transcripts import comparable_turns, difference, turns_of, whole_sequence
from rl_system.viewer.trees import draw_tree

BINS = 20
TREE_NODES, MOST_NODES = 600, 4000
"""Nodes of a tree in one answer: unless asked otherwise, and at most."""
SHOWN = (
    "e.key AS id, e.grp AS 'group', e.idx AS 'index', e.task, e.domain, e.environment, e.split, t.step, e.reward, "
    "e.advantage, e.ended, e.turns, e.tokens, e.errors, e.version_min, e.version_max, "
    f"{STALENESS} AS staleness, e.seconds, e.dropped, e.failure, e.evaluation, e.at"
)


class NotFound(Exception):
    """Its text says what is not there."""


class Api:
    """Over the runs in `folders`, found again whenever they are listed. tokenizer: of runs without a checkpoint."""

    def __init__(self, folders: Sequence[Path], *, cache: Path | None = None, tokenizer: Path | None = None) -> None:
        self._folders, self._cache, self._tokenizer = list(folders), cache or cache_directory(), tokenizer
        self._live: dict[str, LiveRun] = {}
        self._texts: dict[Path, TokenTexts | None] = {}
        if not self._find():
            raise UserError(
                f"no run lies in {', '.join(map(str, folders))}; a run has metrics.jsonl, events.jsonl and episodes"
            )

    def runs(self) -> list[dict[str, Any]]:
        self._find()
        for run in self._live.values():
            run.refresh()
        return sorted((run.summary() for run in self._live.values()), key=lambda each: -(each["updated_at"] or 0))

    def run(self, name: str) -> dict[str, Any]:
        run = self._run(name)
        names = sorted({each for line in run.metrics.lines for each in line})
        kinds = sorted({str(event.get("event")) for event in run.events.lines})
        return run.summary() | {
            "config": run.config,
            "metrics": {each: describe(each) for each in names},
            "events": kinds,
            "values": self._values(run),
        }

    def metrics(self, name: str, names: str = "", since_step: str = "") -> dict[str, list[float | None]]:
        """Columns of equal length, `step` and the clock always among them; null where a step has no such value."""
        since = _number("since_step", since_step, 0)
        lines = [line for line in self._run(name).metrics.lines if (_of(line, "step") or 0) > since]
        wanted = [each for each in names.split(",") if each] or sorted({each for line in lines for each in line})
        return {each: [_of(line, each) for line in lines] for each in dict.fromkeys(["step", CLOCK, *wanted])}

    def events(self, name: str, kind: str = "", since: str = "") -> list[dict[str, Any]]:
        """kind: several with commas between. since: seconds of the run's clock."""
        begin, kinds = _number("since", since, float("-inf")), set(filter(None, kind.split(",")))
        return [
            event
            for event in self._run(name).events.lines
            if (not kinds or event.get("event") in kinds) and (_of(event, CLOCK) or 0.0) >= begin
        ]

    def episodes(self, name: str, given: Mapping[str, str]) -> dict[str, Any]:
        filters, run = read_filters(given), self._run(name)
        total = run.index.select(f"SELECT COUNT(*) FROM {FROM} WHERE {filters.where}", filters.values)
        rows = run.index.select(
            f"SELECT {SHOWN} FROM {FROM} WHERE {filters.where} ORDER BY {filters.order} LIMIT ? OFFSET ?",
            (*filters.values, filters.limit, filters.offset),
        )
        return {
            "total": total[0][0] if total else 0,
            "indexing": run.is_indexing,
            "episodes": [_shown(row) for row in rows],
        }

    def histogram(self, name: str, given: Mapping[str, str]) -> dict[str, Any]:
        """Rewards of the episodes that the filters leave: `edges` [bins + 1], `counts` [bins]; the last bin has both."""
        given = dict(given)
        bins = int(_number("bins", given.pop("bins", ""), BINS))
        if not 1 <= bins <= 200:
            raise UserError(f"bins is {bins}; give a whole number from 1 to 200")
        filters, run = read_filters(given), self._run(name)
        rewards = run.index.select(
            f"SELECT e.reward, COUNT(*) FROM {FROM} WHERE {filters.where} AND e.reward IS NOT NULL GROUP BY e.reward",
            filters.values,
        )
        if not rewards:
            return {"edges": [], "counts": []}
        low, high = min(row[0] for row in rewards), max(row[0] for row in rewards)
        bins = bins if high > low else 1
        counts = [0] * bins
        for reward, count in rewards:
            counts[min(int((reward - low) / (high - low) * bins), bins - 1) if high > low else 0] += count
        return {"edges": [low + (high - low) * each / bins for each in range(bins)] + [high], "counts": counts}

    def steps(self, name: str) -> list[dict[str, Any]]:
        """What each policy update trained on."""
        rows = self._run(name).index.select(
            "SELECT t.step, COUNT(DISTINCT e.grp), COUNT(*), AVG(e.reward) FROM trained t "
            "JOIN episodes e ON e.grp = t.grp GROUP BY t.step ORDER BY t.step"
        )
        return [dict(zip(("step", "groups", "episodes", "reward"), row, strict=True)) for row in rows]

    def group(self, name: str, group: int) -> dict[str, Any]:
        run = self._run(name)
        rows = run.index.select(f"SELECT {SHOWN} FROM {FROM} WHERE e.grp = ? ORDER BY e.idx", (group,))
        if not rows:
            raise NotFound(f"run {name} has no group {group}")
        members = []
        for row in rows:
            line = run.index.read(row["id"]) or {}
            members.append(_shown(row) | {"reward_parts": line.get("reward_parts", {})})
        return {"group": group, "members": members}

    def diff(self, name: str, group: int, a: str, b: str) -> dict[str, Any]:
        run = self._run(name)
        lines = [
            self._line(run, f"g{group:06}.{int(_number(side, text, 0))}") for side, text in (("a", a), ("b", b or "1"))
        ]
        turns = comparable_turns(*lines)
        sequences = [whole_sequence(line, turn) for line, turn in zip(lines, turns, strict=True)]
        return difference(*sequences, self._texts_of(run)) | {"turns": list(turns)}

    def tree(self, name: str, what: str, number: int, root: str = "", budget: str = "") -> dict[str, Any]:
        """The prefix tree of the episodes of a group, or of those that an update trained on. what: `groups` or `steps`."""
        run = self._run(name)
        nodes = int(_number("budget", budget, TREE_NODES))
        if not 1 <= nodes <= MOST_NODES:
            raise UserError(f"budget is {budget}; give a whole number from 1 to {MOST_NODES}")
        column = "t.step" if what == "steps" else "e.grp"
        rows = run.index.select(f"SELECT e.key FROM {FROM} WHERE {column} = ? ORDER BY e.grp, e.idx", (number,))
        lines = [(key, line) for (key,) in rows if (line := run.index.read(key)) is not None]
        found = draw_tree(lines, self._texts_of(run), int(_number("root", root, 0)) if root else None, nodes)
        if found is None:
            raise NotFound(f"run {name} has no such tree: {what} {number}" + (f", node {root}" if root else ""))
        return found

    def episode(self, name: str, key: str) -> dict[str, Any]:
        run = self._run(name)
        line = self._line(run, key)
        (row,) = run.index.select(f"SELECT {SHOWN} FROM {FROM} WHERE e.key = ? ORDER BY e.id DESC LIMIT 1", (key,)) or [
            None
        ]
        shown = _shown(row) if row is not None else {"id": key}
        others = (
            []
            if shown.get("group") is None
            else run.index.select("SELECT key FROM episodes WHERE grp = ? ORDER BY idx", (shown["group"],))
        )
        return shown | {
            "reward_parts": line.get("reward_parts", {}),
            "counts": line.get("counts", {}),
            "timings": line.get("timings", {}),
            "transcript": line["transcript"],
            "turns": turns_of(line, self._texts_of(run)),
            "members": [each[0] for each in others],
        }

    def revisions(self) -> dict[str, int]:
        """A number by run that grows when the run does. Only runs that somebody looked at."""
        looked_at = {name: run for name, run in self._live.items() if run.revision}
        for run in looked_at.values():
            run.refresh()
        return {name: run.revision for name, run in looked_at.items()}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _find(self) -> dict[str, LiveRun]:
        for name, folder in find_runs(self._folders).items():
            if name not in self._live or self._live[name].folder != folder:
                self._live[name] = LiveRun(folder, self._cache)
        return self._live

    def _run(self, name: str) -> LiveRun:
        run = self._live.get(name) or self._find().get(name)
        if run is None:
            raise NotFound(f"there is no run {name}")
        run.refresh()
        return run

    def _line(self, run: LiveRun, key: str) -> dict[str, Any]:
        line = run.index.read(key)
        if line is None:  # written over since it was read
            run.refresh(wait=True)
            line = run.index.read(key)
        if line is None:
            raise NotFound(f"run {run.folder.name} has no episode {key}")
        return line

    def _texts_of(self, run: LiveRun) -> TokenTexts | None:
        path = newest_tokenizer(run.folder) or self._tokenizer
        if path is None:
            return None
        if path not in self._texts:
            try:
                self._texts[path] = TokenTexts(path)
            except UserError:
                self._texts[path] = None  # the transcript is there all the same, and tokens show as ids
        return self._texts[path]

    def _values(self, run: LiveRun) -> dict[str, list[str]]:
        """What there is to choose from in filters."""
        return {
            column: [row[0] for row in run.index.select(f"SELECT DISTINCT {column} FROM episodes ORDER BY 1 LIMIT 500")]
            for column in ("domain", "split", "ended", "task")
        }


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(row)
    low, high = values.pop("version_min"), values.pop("version_max")
    return values | {"versions": None if low is None else [low, high]}


def _of(line: Mapping[str, Any], name: str) -> float | None:
    value = line.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(name: str, text: str, default: float) -> float:
    if text == "":
        return default
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value or abs(value) > 1e15:
        raise UserError(f"{name} is {text!r}; give a number")
    return value
