"""Commands that a person types, `python -m launch.<command>`.

Importing what a command needs takes seconds. Ctrl-C in that time ends the process in a word, with the exit code of one that
was stopped, and not in a traceback through libraries; from `command.run_command` on it is the command's own affair.
"""

import os
import signal
import sys

STOPPED = 130
"""Exit code after Ctrl-C or a termination signal, as shells have it."""


def _leave(number: int, frame: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(STOPPED)


if sys.argv[0] == "-m":  # so it reads while Python looks for the command; whoever imports this later has set it
    signal.signal(signal.SIGINT, _leave)
