"""How a command ends: what a person did wrong is one paragraph and exit code 2, a request to stop is no error."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from launch import STOPPED
from rl_system.errors import UserError


def run_command(command: Callable[[], int | None]) -> int:
    """Exit code of `command`. Bugs keep their traceback."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return command() or 0
    except UserError as error:
        # Raised in an actor, it arrives wrapped together with the actor's traceback.
        print(f"error: {getattr(error, 'cause', error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
