"""A run as it lies on disk, read back for reports. Needs no configuration and no other part of the system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rl_system.errors import UserError
from rl_system.tracking.json_lines import read_lines
from rl_system.tracking.tracker import EVALUATION

METRICS = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class History:
    """steps: lines of `metrics.jsonl`, in order; events: lines of `events.jsonl`; config: the resolved configuration,
    empty where the run wrote none.
    """

    directory: Path
    steps: list[dict[str, Any]]
    events: list[dict[str, Any]]
    config: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.config.get("name", self.directory.name))

    def names(self) -> set[str]:
        return {name for line in self.steps for name in line}

    def series(self, name: str, over: str = "step") -> tuple[np.ndarray, np.ndarray]:
        """x = metric `over`, y = metric `name`, of the steps that have both, float64 [n]."""
        pairs = [
            (line[over], line[name])
            for line in self.steps
            if line.get(over) is not None and line.get(name) is not None
        ]
        x, y = np.array(pairs, np.float64).reshape(-1, 2).T
        return x, y

    def evaluations(self) -> list[dict[str, Any]]:
        """Lines with `eval/` metrics, from events and from steps, in the order of time."""
        events = [each for each in self.events if each["event"] == EVALUATION]
        steps = [line for line in self.steps if any(name.startswith("eval/") for name in line)]
        return sorted(events + steps, key=lambda line: line["time/wall_clock_s"])


def is_run(directory: Path) -> bool:
    """Whether a run has left anything there that can be read."""
    return (Path(directory) / METRICS).exists()


def read_history(directory: Path) -> History:
    """UserError where `directory` holds no run. A run that has not finished a step yet has no `steps`."""
    directory = Path(directory)
    if not is_run(directory):
        raise UserError(f"{directory} is no run directory: it has no metrics.jsonl; give one, such as runs/<name>")
    config = directory / "config.yaml"
    return History(
        directory=directory,
        steps=read_lines(directory / METRICS),
        events=read_lines(directory / "events.jsonl"),
        config=(yaml.safe_load(config.read_text()) or {}) if config.exists() else {},
    )
