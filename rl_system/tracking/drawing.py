"""How charts look: one style for reports and figures of the docs, drawn to SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#94a3b8",
    "axes.labelcolor": "#475569",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
    "xtick.color": "#475569",
    "ytick.color": "#475569",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
}

METADATA = ("Creator", "Date", "Format", "Type")
"""What Matplotlib would write into every file: addresses and the time, so that no two files are alike."""


def svg(draw: Callable[[Axes], None], *, width: float = 5.2, height: float = 2.7, salt: str = "chart") -> str:
    """An `<svg>` element, without XML prologue. salt: tells its ids apart from those of other charts of a page."""
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": salt}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=dict.fromkeys(METADATA), transparent=True)
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def legend(axes: Axes) -> None:
    """A legend above the axes, where it hides no data."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.98), ncols=4, borderaxespad=0.2, handlelength=1.4)


def smooth(values: np.ndarray) -> np.ndarray:
    """Trailing mean of `values` [n] over an eighth of them, at least 3: what a reward curve shows beside its points."""
    window = max(3, len(values) // 8)
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def curve(axes: Axes, x: np.ndarray, y: np.ndarray, label: str | None = None, colour: str | None = None) -> None:
    """Points, and their trailing mean as a line."""
    (line,) = axes.plot(x, smooth(y), label=label, color=colour, linewidth=1.8, clip_on=False)
    axes.plot(x, y, marker="o", markersize=2.5, linestyle="none", alpha=0.45, color=line.get_color(), clip_on=False)


def over_updates(axes: Axes, label: str = "policy update") -> None:
    """The x-axis of what is measured once an update: whole numbers, also where there is a single one. Call it last."""
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    widen_point(axes, 1.0)


def over_minutes(axes: Axes, label: str = "minutes") -> None:
    """The x-axis of wall-clock time, which begins with the run. Call it last."""
    axes.set_xlabel(label)
    axes.set_xlim(left=0)


def widen_point(axes: Axes, least: float) -> None:
    """Give an x-axis whose data are one point a width of `least` to both sides, in place of a hair's breadth."""
    low, high = axes.dataLim.intervalx
    if low == high:
        axes.set_xlim(low - least, high + least)
