"""What an evaluation leaves on disk: its episodes as they come, and a summary that tells it apart from others.

    <output>/<policy>-<environment>-<split>-<time>/
        episodes.jsonl    a line an episode, written when it is over
        summary.json      what was evaluated, how, and with what result; `complete` only once all was played
        failures.log      tracebacks of environments that broke

Invariant: no evaluation writes into the directory of another.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.records import Episode, Task
from rl_system.strict_json import write_json
from rl_system.tracking.episodes import as_json
from rl_system.tracking.evaluation import evaluation_summary
from rl_system.tracking.json_lines import JsonLines

MOST_CHARACTERS = 160
"""Of a directory's name; file systems take 255 bytes."""


def make_directory(output: Path, name: str | None, *parts: str) -> Path:
    """A new directory in `output`: called `name`, which nothing may be called yet, or by `parts` and the time."""
    if name is not None:
        path = output / name
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise UserError(f"--name is {name!r}, but {path} is there already; give another name") from None
        return path
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(filter(None, parts))).lstrip("._-")[:MOST_CHARACTERS]
    for number in itertools.count(1):
        path = output / f"{stem}-{now}{f'-{number}' if number > 1 else ''}"
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
    raise AssertionError("unreachable: numbers do not end")


class EvaluationRecord:
    """Files of one evaluation in `directory`, which is its own.

    about: what is said of the policy and the conditions, as plain values.
    """

    def __init__(self, directory: Path, config: RunConfig, tasks: Sequence[Task], about: dict[str, Any]) -> None:
        self.directory = directory
        self.episodes: list[Episode] = []
        self._began = time.monotonic()
        self._about = about | {
            "environment": config.environment.name,
            "domains": sorted({task.domain for task in tasks}),
            "split": config.environment.split,
            "user": config.environment.user.kind,
            "tasks": len(tasks),
            "trials": config.evaluation.episodes_per_task,
            "seed": config.seed,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": config.model_dump(mode="json"),
        }
        self._lines = JsonLines(self.transcripts, None)
        self._write_summary(complete=False)

    @property
    def transcripts(self) -> Path:
        return self.directory / "episodes.jsonl"

    @property
    def summary_file(self) -> Path:
        return self.directory / "summary.json"

    def add(self, episode: Episode) -> None:
        """Write an episode that is over."""
        self.episodes.append(episode)
        self._lines.write(as_json(episode))

    def close(self, *, complete: bool) -> None:
        """complete: whether all was played that was to be."""
        self._lines.close()
        self._write_summary(complete=complete)

    def _write_summary(self, *, complete: bool) -> None:
        results = evaluation_summary(self.episodes) if self.episodes else {"episodes": 0}
        seconds = round(time.monotonic() - self._began, 3)
        write_json(
            self.summary_file, {"complete": complete, **results, "seconds": seconds, **self._about}, indent=2
        )
