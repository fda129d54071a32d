"""Fetch and convert a model that the system prepares itself. Does nothing where the cache holds it."""

from __future__ import annotations

import argparse
import sys
import time

from rl_system.errors import UserError
from rl_system.training.prepared import PREPARED_MODELS, is_prepared, prepare_model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m launch.prepare_model", description=__doc__)
    parser.add_argument("name", nargs="?", default="smollm2-135m-instruct", help=", ".join(PREPARED_MODELS))
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        known = options.name in PREPARED_MODELS and is_prepared(options.name)
        directory = prepare_model(options.name)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    made = "in the cache" if known else f"prepared in {time.perf_counter() - started:.0f} s"
    print(f"{options.name}: {made}, {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
