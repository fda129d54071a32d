"""One process at a time in the directory of a run.

Whoever starts a run again cannot know whether the old process is gone: it may hang, or go on in a cluster that was left over.
The lock is the operating system's, so it ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from rl_system.errors import UserError
from rl_system.strict_json import to_json

logger = logging.getLogger(__name__)

LOCK = "run.lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def only_process_in(directory: Path) -> Iterator[None]:
    """Hold `directory`, made where missing, for as long as the run goes on; a directory that stays empty is removed again.

    Raises UserError where another process holds it, or where it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(directory)
    except OSError as error:
        raise UserError(f"the run's directory {directory} cannot be written: {error.strerror}; choose --output") from None
    try:
        yield
    finally:
        (directory / LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            directory.rmdir()  # only where nothing else is in it
        os.close(descriptor)


def _acquire(directory: Path) -> int:
    path = directory / LOCK
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if error.errno in UNSUPPORTED:
                logger.warning("%s is on a file system without locks: nothing keeps two runs apart there", directory)
                return os.open(path, os.O_RDWR)
            raise UserError(
                f"{directory} is in use by a run that goes on{holder}; wait for it, stop it, or give this run another name "
                "(--name)"
            ) from None
        # Whoever ends removes the file while it holds the lock: a lock on a file that is gone protects nothing.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                break
        os.close(descriptor)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, to_json({"pid": os.getpid(), "host": socket.gethostname()}).encode())
    return descriptor


def _holder(descriptor: int) -> str:
    try:
        who = json.loads(os.read(descriptor, 1000))
        return f" (process {who['pid']} on {who['host']})"
    except (ValueError, KeyError, TypeError):
        return ""
