"""Fetch and convert a model that the system prepares itself. Does nothing where the cache holds it."""

from __future__ import annotations

import sys
import time

from launch.command import Parser, run_command
from rl_system.training.prepared import PREPARED_MODELS, is_prepared, prepare_model


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.prepare_model", description=__doc__)
    parser.add_argument("name", nargs="?", default="smollm2-135m-instruct", help=", ".join(PREPARED_MODELS))
    return run_command(lambda: prepare(parser.parse_args(arguments).name))


def prepare(name: str) -> int:
    started = time.perf_counter()
    known = name in PREPARED_MODELS and is_prepared(name)
    directory = prepare_model(name)
    made = "in the cache" if known else f"prepared in {time.perf_counter() - started:.0f} s"
    print(f"{name}: {made}, {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
