"""Warm start: the supervised phase before RL, on scripted demonstrations of the training tasks.

    python -m launch.warm_start --config configs/tau2_mock_cpu.yaml [--section.key value …]

Prints the directory of the model, which the cache keeps. A run whose configuration has `warm_start.enabled` finds it there.
"""

from __future__ import annotations

import argparse
import sys

from launch.command import Parser, place, run_command
from rl_system.config.load import load_config


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.warm_start", description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=place(), required=True, help="a file of configs/")
    return run_command(lambda: warm_start(*parser.parse_known_args(arguments)))


def warm_start(options: argparse.Namespace, overrides: list[str]) -> int:
    config = load_config(options.config, overrides)
    from rl_system.training.warm_start import ensure_warm_start

    ensure_warm_start(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
