"""`python -m launch.bench allocation`: strategies of allocation on a grid of simulated workloads.

A table in Markdown, or with `--json` one object a workload; with `--plot` a figure as well. Columns without a unit are
relative to the best static split: over the second half of the run for stationary workloads, over all of it for
drifting ones. `auto` is the worst of three starts. Noisy workloads are run with several seeds, and their means count.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from launch.command import Parser, place, seed
from rl_system.allocation.comparison import Comparison, compare
from rl_system.allocation.workloads import grid
from rl_system.errors import UserError
from rl_system.strict_json import to_json

HEADER = (
    "| workload | best static | groups/s | worst static | lending | auto | oracle | auto, whole run | moves, turns in 100 steps |",
    "|---|---|---|---|---|---|---|---|---|",
)


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.bench allocation", description=__doc__)
    parser.add_argument("--workloads", help="names, separated by semicolons (default: all)")
    parser.add_argument("--seed", type=seed(), default=0)
    parser.add_argument("--plot", type=place(), help="also draw the rates of all strategies, .svg or .png")
    parser.add_argument("--json", action="store_true", help="one JSON object a workload")
    options = parser.parse_args(arguments)
    cases = {case.name: case for case in grid()}
    wanted = options.workloads.split(";") if options.workloads else list(cases)
    if unknown := [name for name in wanted if name not in cases]:
        raise UserError(f"--workloads names {unknown}, which are not in the grid; there are {'; '.join(cases)}")
    results = []
    if not options.json:
        print("\n".join(HEADER), flush=True)
    for name in wanted:
        result = compare(cases[name], options.seed)
        results.append(result)
        print(to_json(as_record(result)) if options.json else as_row(result), flush=True)
    if options.plot:
        draw(results, options.plot)
    return 0


def as_record(result: Comparison) -> dict[str, object]:
    record = dataclasses.asdict(result)
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in record.items()}


def as_row(result: Comparison) -> str:
    """Rates relative to the best static split."""
    best, rates = result.best_static, (result.worst_static, result.lending, result.auto, result.oracle)
    relative = " | ".join(f"{rate / result.static:.2f}" for rate in rates)
    return (
        f"| {result.workload} | {best.rollout} + {best.trainer} | {result.static:.3g} | {relative} | "
        f"{result.auto_whole:.2f} | {result.moves_per_100}, {result.turns_per_100} |"
    )


def draw(results: list[Comparison], path: Path) -> None:
    """Bars of each strategy's rate, relative to the best static split."""
    import matplotlib
    from matplotlib.figure import Figure

    from rl_system.tracking.drawing import COLOURS, METADATA, STYLE, legend

    strategies = {"worst static": "worst_static", "time lending": "lending", "auto": "auto", "oracle": "oracle"}
    colours = ("#cbd5e1", COLOURS[5], COLOURS[0], "#475569")
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": path.stem}):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        axes = figure.add_subplot()
        width = 0.8 / len(strategies)
        for i, ((label, name), colour) in enumerate(zip(strategies.items(), colours, strict=True)):
            heights = [getattr(result, name) / result.static for result in results]
            axes.bar([x + (i - 1.5) * width for x in range(len(results))], heights, width, label=label, color=colour)
        axes.axhline(1.0, color="#1e293b", linewidth=0.8)
        axes.set_xticks(range(len(results)), [result.workload for result in results], rotation=25, ha="right")
        axes.set_ylabel("groups/s, relative to the\nbest static split in hindsight")
        legend(axes)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = dict.fromkeys(METADATA) if path.suffix == ".svg" else None
        figure.savefig(path, dpi=150, metadata=metadata, facecolor="white")
