"""`python -m launch.bench COMMAND …`: measurements. A command is a file of this folder with a `main(arguments) -> int`."""

import importlib
import pkgutil
import sys

import launch.bench
from launch.command import run_command


def commands() -> list[str]:
    return sorted(
        module.name for module in pkgutil.iter_modules(launch.bench.__path__) if not module.ispkg and module.name != "__main__"
    )


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in commands():
        given = f"{arguments[0]!r} is no benchmark" if arguments else "no benchmark given"
        print(f"{given}; usage: python -m launch.bench {{{','.join(commands())}}} [options]", file=sys.stderr)
        return 2
    return run_command(lambda: importlib.import_module(f"launch.bench.{arguments[0]}").main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
