"""Runs that differ in a few keys and in their seeds, as one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_system.errors import UserError
from rl_system.tracking.events import FINISHED
from rl_system.tracking.history import History
from rl_system.tracking.json_lines import scan_lines
from rl_system.tracking.summary import quarters

HEADER = (
    "variant",
    "seeds",
    "held-out success, last",
    "mean reward, first quarter → last",
    "largest staleness",
    "clipped",
    "minutes",
)


def finished(directory: Path, steps: int) -> bool:
    """Whether `directory` holds a run that did `steps` updates and everything after them."""
    ends = [event for event in scan_lines(directory / "events.jsonl").lines if event.get("event") == FINISHED]
    return any(event.get("steps", 0) >= steps for event in ends) and (directory / "metrics.jsonl").exists()


@dataclass(frozen=True, slots=True)
class Variant:
    """runs: of one variant, a seed each, finished; at least one."""

    name: str
    runs: Sequence[History]

    def row(self) -> tuple[str, ...]:
        rates = [self._success(run) for run in self.runs]
        rewards = [quarters(run.series("reward/mean")[1]) for run in self.runs]
        first, last = (sum(each) / len(rewards) for each in zip(*rewards, strict=True))
        return (
            self.name,
            ", ".join(str(run.config["seed"]) for run in self.runs),
            " ".join(f"{rate:.0%}" for rate in rates),
            f"{first:.2f} → {last:.2f}",
            f"{max(run.series('off_policy/staleness_max')[1].max() for run in self.runs):.0f}",
            f"{self._mean('train/clip_fraction'):.1%}",
            " ".join(f"{run.steps[-1]['time/wall_clock_s'] / 60:.0f}" for run in self.runs),
        )

    def _success(self, run: History) -> float:
        rates = [line["eval/success_rate"] for line in run.evaluations() if line.get("eval/success_rate") is not None]
        if not rates:
            raise UserError(f"{run.directory} has no evaluation; the table needs one, set evaluation.after to true")
        return rates[-1]

    def _mean(self, metric: str) -> float:
        values = [value for run in self.runs for value in run.series(metric)[1]]
        return sum(values) / max(1, len(values))


def table(variants: Sequence[Variant]) -> str:
    """Markdown, a line a variant: per seed what differs much between seeds, else means over seeds."""
    rows = [HEADER, ("---",) * len(HEADER), *(each.row() for each in variants)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
