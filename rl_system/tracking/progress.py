"""The one place where a run shows how it goes.

In a terminal a live table: the last steps, and under it what each side is doing now. Elsewhere (job logs, a pipe) one
plain line a step, so that a log can be read and grepped.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

SHOWN_STEPS = 12
"""Rows of the live table."""
NOTABLE_SHARE = 0.05
"""Waiting for less than this share of the time is not worth a word."""


class Progress(Protocol):
    def step(self, metrics: Mapping[str, float]) -> None:
        """A step is done."""

    def status(self, **sides: str) -> None:
        """What each side does now, in a few words: `rollout="24 episodes running", trainer="waits for groups"`."""

    def note(self, text: str) -> None:
        """A line that stays: an evaluation's result, a failure, where the files are."""

    def close(self) -> None: ...


def make_progress(steps: int, *, shown: bool = True, stream: TextIO | None = None) -> Progress:
    """The display for `stream` (standard output): live in a terminal, plain lines elsewhere, nothing unless `shown`."""
    stream = stream or sys.stdout
    if not shown:
        return _Hidden()
    return LiveTable(steps, stream) if stream.isatty() else PlainLines(steps, stream)


def columns(steps: int, metrics: Mapping[str, float]) -> dict[str, str]:
    """A step as short texts by column; a metric that is not there leaves its column empty."""

    def number(name: str, form: str) -> str:
        value = metrics.get(name)
        return "" if value is None else format(value, form)

    return {
        "step": f"{metrics['step']:.0f}/{steps}",
        "time": _clock(metrics["time/wall_clock_s"]),
        "reward": number("reward/mean", ".3f"),
        "success": number("reward/success_rate", ".0%"),
        "staleness": number("off_policy/staleness_mean", ".1f"),
        "rollout tok/s": number("rollout/tokens_per_s", ",.0f"),
        "train tok/s": number("perf/train_tokens_per_s", ",.0f"),
        "sharing": number("tree/compression", ".1f") + ("x" if "tree/compression" in metrics else ""),
        "split": split(metrics),
        "waits": waits(metrics),
    }


def split(metrics: Mapping[str, float]) -> str:
    """Accelerators that generate + train, and behind an arrow the split that the controller would choose instead."""
    now = [metrics.get("controller/rollout"), metrics.get("controller/trainer")]
    advised = [metrics.get("controller/advised_rollout"), metrics.get("controller/advised_trainer")]
    if None in now:
        return ""
    shown = "+".join(f"{count:.0f}" for count in now)
    return shown if None in advised or advised == now else f"{shown} → {'+'.join(f'{count:.0f}' for count in advised)}"


def waits(metrics: Mapping[str, float]) -> str:
    """What each side waited for, where it waited for more than a little; empty where that was not measured."""
    found, measured = [], False
    for name, text in (
        ("perf/rollout_idle_share", "engines idle {:.0%}"),
        ("perf/permit_wait_share", "episode slots held by staleness {:.0%}"),
        ("perf/train_wait_share", "trainer waits for groups {:.0%}"),
    ):
        share = metrics.get(name)
        measured = measured or share is not None
        if share is not None and share >= NOTABLE_SHARE:
            found.append(text.format(share))
    return ", ".join(found) or ("nothing waits" if measured else "")


class PlainLines:
    """One line a step, each complete in itself."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps, self._stream = steps, stream

    def step(self, metrics: Mapping[str, float]) -> None:
        texts = columns(self._steps, metrics)
        held_up = texts.pop("waits")
        parts = [f"{name} {text}" for name, text in texts.items() if text]
        self._print("  ".join(parts + ([f"({held_up})"] if held_up else [])))

    def status(self, **sides: str) -> None:
        """A log has no place for what is over a moment later."""

    def note(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        self._stream.flush()

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveTable:
    """A table of the last steps that redraws itself, with the present state of each side under it."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps = steps
        self._rows: deque[dict[str, str]] = deque(maxlen=SHOWN_STEPS)
        self._sides: dict[str, str] = {}
        self._live = Live(console=Console(file=stream), refresh_per_second=4, get_renderable=self._draw)
        self._live.start()

    def step(self, metrics: Mapping[str, float]) -> None:
        self._rows.append(columns(self._steps, metrics))

    def status(self, **sides: str) -> None:
        self._sides.update(sides)

    def note(self, text: str) -> None:
        self._live.console.print(Text(text))

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> Group:
        table = Table(box=None, header_style="dim")
        rows = list(self._rows)
        for name in rows[-1] if rows else ():
            table.add_column(name, justify="left" if name == "waits" else "right")
        for row in rows:
            table.add_row(*row.values())
        now = "   ".join(f"{side}: {text}" for side, text in self._sides.items())
        return Group(table, Text(now, style="dim"))


class _Hidden:
    """The display of a run that asked for none."""

    def step(self, metrics: Mapping[str, float]) -> None:
        """Shows nothing."""

    def status(self, **sides: str) -> None:
        """Shows nothing."""

    def note(self, text: str) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Nothing is open."""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
