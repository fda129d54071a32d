"""Reward curves of several runs in one figure, against wall clock and against policy updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from rl_system.errors import UserError
from rl_system.tracking.drawing import METADATA, STYLE, curve, legend, over_minutes, over_updates
from rl_system.tracking.history import read_history

FORMATS = (".svg", ".png")


def write_comparison(directories: Sequence[Path], out: Path, metric: str = "reward/mean") -> Path:
    """Draw `metric` of each run, its points and their trailing mean, to `out` (SVG or PNG by suffix); returns `out`.

    UserError where a directory is no run, a run has not written the metric, or the suffix is another.
    """
    out = Path(out)
    if out.suffix not in FORMATS:
        raise UserError(f"--out is {str(out)!r}; end the name with {' or '.join(FORMATS)}, the formats of the figure")
    runs = [read_history(directory) for directory in directories]
    for run in runs:
        if metric not in run.names():
            raise UserError(f"{run.directory} has no metric {metric!r}; it has {', '.join(sorted(run.names()))}")
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": out.stem}):
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        over_time, over_steps = figure.subplots(1, 2, sharey=True)
        for run in runs:
            seconds, values = run.series(metric, "time/wall_clock_s")
            curve(over_time, seconds / 60, values, run.name)
            curve(over_steps, *run.series(metric), run.name)
        over_minutes(over_time, "wall clock, minutes")
        over_updates(over_steps, "policy updates")
        over_time.set_ylabel(metric.replace("/", " "))
        legend(over_time)
        out.parent.mkdir(parents=True, exist_ok=True)
        metadata = dict.fromkeys(METADATA) if out.suffix == ".svg" else None
        figure.savefig(out, dpi=150, metadata=metadata, facecolor="white")
    return out
