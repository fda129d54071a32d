"""How a command reads its options and how it ends: what a person did wrong is one paragraph and exit code 2, a request to
stop is no error.
"""

from __future__ import annotations

import argparse
import math
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from launch import STOPPED
from launch.stopping import heard
from rl_system.config.paths import absolute
from rl_system.errors import UserError

MOST_SEED = 2**63 - 1
"""Largest seed that every generator takes."""


def run_command(command: Callable[[], int | None]) -> int:
    """Exit code of `command`, which reads its options too. Bugs keep their traceback."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with heard():
            return command() or 0
    except UserError as error:
        # Raised in an actor, it arrives wrapped together with the actor's traceback.
        print(f"error: {getattr(error, 'cause', error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED


class Parser(argparse.ArgumentParser):
    """Options of a command; a mistake in them is a UserError. Nothing is abbreviated: `--split` never means
    `--split-name`, and what is unknown here can be a key of the configuration.
    """

    def __init__(self, **settings) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        text = re.sub(r"^argument (\S+): (is )?", lambda found: found[1] + (" is " if found[2] else ": "), message)
        raise UserError(f"{text}; {self.prog} --help tells what there is")


def whole(at_least: int | None = None, at_most: int | None = None) -> Callable[[str], int]:
    """For `type` of an option: a whole number within bounds."""
    return _bounded(int, "a whole number", at_least, at_most)


def number(
    at_least: float | None = None, at_most: float | None = None, above: float | None = None
) -> Callable[[str], float]:
    """For `type` of an option: a finite number within bounds."""
    return _bounded(float, "a number", at_least, at_most, above)


def wholes(at_least: int | None = None, at_most: int | None = None) -> Callable[[str], list[int]]:
    """For `type` of an option: whole numbers within bounds, separated by commas."""
    one = whole(at_least, at_most)

    def read(text: str) -> list[int]:
        try:
            return [one(each) for each in text.split(",")]
        except argparse.ArgumentTypeError:
            right = _wanted("whole numbers separated by commas, each", at_least, at_most)
            raise argparse.ArgumentTypeError(f"is {text!r}; give {right}") from None

    return read


def seed() -> Callable[[str], int]:
    """For `type` of an option: the seed of a random generator."""
    return whole(at_least=0, at_most=MOST_SEED)


def place() -> Callable[[str], Path]:
    """For `type` of an option: a path in which `~` is the home directory. What is relative stays so, for messages."""

    def read(text: str) -> Path:
        try:
            absolute(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"is {text!r}; {error}") from None
        return Path(text).expanduser()

    return read


def port() -> Callable[[str], int]:
    """For `type` of an option: a port that a server can be given."""
    return whole(at_least=1, at_most=65535)


def _bounded(kind: type, what: str, at_least=None, at_most=None, above=None) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if (
            not math.isfinite(value)
            or (at_least is not None and value < at_least)
            or (at_most is not None and value > at_most)
            or (above is not None and value <= above)
        ):
            raise argparse.ArgumentTypeError(f"is {text}; give {_wanted(what, at_least, at_most, above)}")
        return value

    return read


def _wanted(what: str, at_least=None, at_most=None, above=None) -> str:
    if above is not None:
        what += f" above {above:g}"
    if at_least is not None:
        what += f" from {at_least:g} on" if at_most is None else f" from {at_least:g} to {at_most}"
    elif at_most is not None:
        what += f", at most {at_most:g}"
    return what
