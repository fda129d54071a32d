"""Warm start: the supervised phase before RL, on scripted demonstrations of the training tasks.

    python -m launch.warm_start --config configs/tau2_mock_cpu.yaml [--section.key value …]

Prints the directory of the model, which the cache keeps. A run whose configuration has `warm_start.enabled` finds it there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.command import run_command
from rl_system.config.load import load_config


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m launch.warm_start", description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="a file of configs/")
    options, overrides = parser.parse_known_args(arguments)
    return run_command(lambda: warm_start(options.config, overrides))


def warm_start(path: Path, overrides: list[str]) -> int:
    config = load_config(path, overrides)
    from rl_system.training.warm_start import ensure_warm_start

    ensure_warm_start(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
