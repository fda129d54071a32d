"""How a command hears that it is to stop, tells that it has heard, and passes that on to the programs that it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator

SOON_S = 0.3
"""Who is over so soon has nothing to tell but that."""

_told_elsewhere = threading.Event()


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Whoever presses Ctrl-C meanwhile reads `stopping` at once, unless it is over as soon. Also where this process is deep in
    a library and gets around to stopping only later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    over = threading.Event()

    def tell() -> None:
        while number := os.read(reading, 1):
            if number[0] in (signal.SIGINT, signal.SIGTERM):
                if not over.wait(SOON_S) and not _told_elsewhere.is_set():
                    os.write(2, b"stopping\n")
                return

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    # Python writes the number of a signal there when it arrives, and calls its handler when the main thread comes to it.
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        over.set()
        os.close(writing)
        telling.join()
        os.close(reading)


def stop_when_terminated() -> None:
    """A signal to end this process stops it as Ctrl-C does, so that what it started is stopped in order."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def run_program(command: list[str], **settings) -> int:
    """Exit code of a program that says itself what it does. A request to stop goes on to it, and it takes the time it needs.

    settings: for `subprocess.Popen`.
    """
    # In a session of its own: a terminal would tell it too, and who hears it twice may leave things undone.
    program = subprocess.Popen(command, start_new_session=True, **settings)
    stopped = None
    _told_elsewhere.set()
    try:
        while True:
            try:
                code = program.wait()
                break
            except KeyboardInterrupt as request:
                stopped = request
                program.send_signal(signal.SIGINT)
    finally:
        _told_elsewhere.clear()
        if program.poll() is None:
            program.kill()
            program.wait()
    if stopped is not None:
        raise stopped
    return code
