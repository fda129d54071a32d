"""Draw what runs left on disk: the report of one, or the reward curves of several in one figure.

    python -m launch.report runs/NAME
    python -m launch.report --compare runs/A runs/B runs/C --out curves.svg
"""

from __future__ import annotations

import argparse
import sys

from launch.command import Parser, place, run_command
from rl_system.errors import UserError
from rl_system.tracking.compare import write_comparison
from rl_system.tracking.report import write_report


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.report", description=__doc__.split("\n")[0])
    parser.add_argument("run", nargs="?", type=place(), help="run directory; its report is written to report.html there")
    parser.add_argument("--compare", nargs="+", type=place(), metavar="RUN", help="run directories to draw together")
    parser.add_argument("--out", type=place(), help="the figure, .svg or .png (with --compare)")
    parser.add_argument("--metric", default="reward/mean", help="what to draw (with --compare; default: %(default)s)")
    return run_command(lambda: report(parser.parse_args(arguments)))


def report(options: argparse.Namespace) -> None:
    if (options.run is None) == (options.compare is None):
        raise UserError("give one run directory, or several after --compare")
    if (options.compare is None) != (options.out is None):
        raise UserError("--compare and --out go together: the run directories, and the figure to draw them in")
    if options.compare:
        print(write_comparison(options.compare, options.out, options.metric))
    else:
        print(write_report(options.run))


if __name__ == "__main__":
    sys.exit(main())
