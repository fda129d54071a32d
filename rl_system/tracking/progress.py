"""The one place where a run shows how it goes.

In a terminal a live table: the last steps, and under it what each side is doing now. Elsewhere (job logs, a pipe) one
plain line a step, so that a log can be read and grepped. Invariant: where a width is known, no line of a step is wider;
what does not fit is left out, the least important first.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

SHOWN_STEPS = 12
"""Rows of the live table."""
NOTABLE_SHARE = 0.05
"""Waiting for less than this share of the time is not worth a word."""
COLUMN_GAP = 2
"""Between two columns of the live table, and two parts of a plain line."""
LEAST_FIRST = ("split", "train tok/s", "rollout tok/s", "sharing", "staleness", "success", "time")
"""In which order columns are left out where a line is too narrow for all; step and reward always stay."""


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
    if not shown:
        return _Hidden()
    stream = _Audience(stream or sys.stdout)
    return LiveTable(steps, stream) if stream.isatty() else PlainLines(steps, stream, width=_stated_width())


def _stated_width() -> int | None:
    """Of whoever reads a pipe, where it says so: the quickstart hands its terminal's on to the job. None: any."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else None


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


def fitting(lengths: Mapping[str, int], width: int) -> list[str]:
    """Names of the columns, in order, that are shown side by side in `width` characters. lengths: of their contents."""
    shown = list(lengths)
    for name in ("waits", *LEAST_FIRST):
        if sum(lengths[each] + COLUMN_GAP for each in shown) - COLUMN_GAP <= width:
            break
        if name in shown:
            shown.remove(name)
    return shown


class PlainLines:
    """One line a step, each complete in itself. width: the most characters of one; None: any."""

    def __init__(self, steps: int, stream: TextIO, width: int | None = None) -> None:
        self._steps, self._stream, self._width = steps, stream, width

    def step(self, metrics: Mapping[str, float]) -> None:
        texts = {name: text for name, text in columns(self._steps, metrics).items() if text}
        parts = {name: f"({text})" if name == "waits" else f"{name} {text}" for name, text in texts.items()}
        if self._width is not None:
            shown = fitting({name: len(part) for name, part in parts.items()}, self._width)
            parts = {name: parts[name] for name in shown}
        self._print("  ".join(parts.values()))

    def status(self, **sides: str) -> None:
        """A log has no place for what is over a moment later."""

    def note(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        """Every line was flushed when it was written."""

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveTable:
    """A table of the last steps that redraws itself, with the present state of each side under it."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps = steps
        self._rows: deque[dict[str, str]] = deque(maxlen=SHOWN_STEPS)
        self._sides: dict[str, str] = {}
        self._console = Console(file=stream)
        self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._draw)
        self._live.start()

    def step(self, metrics: Mapping[str, float]) -> None:
        self._rows.append(columns(self._steps, metrics))

    def status(self, **sides: str) -> None:
        self._sides.update(sides)

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> Group:
        rows = list(self._rows)
        filled = [name for name in (rows[-1] if rows else ()) if any(row[name] for row in rows)]
        lengths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in filled}
        shown = fitting(lengths, self._console.width)
        table = Table(box=None, header_style="dim", padding=(0, COLUMN_GAP, 0, 0), pad_edge=False)
        for name in shown:
            table.add_column(name, justify="left" if name == "waits" else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(row[name] for name in shown))
        lines = [f"{side}: {text}" for side, text in self._sides.items()]
        if rows and "waits" not in shown and rows[-1]["waits"]:
            lines.insert(0, f"last step: {rows[-1]['waits']}")
        beside = "   ".join(lines)
        if len(beside) <= self._console.width:
            lines = [beside]
        return Group(table, *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines))


class _Audience:
    """A text stream whose reader may go away (a closed terminal, a pipe into `head`), which is no reason for a run to end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._unless_gone():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._unless_gone():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _unless_gone(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            # What the stream still holds would fail once more when the interpreter ends.
            self._stream = Path(os.devnull).open("w")


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
