"""The host's side of one worker process (`envs.worker`): start it, call it, end it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

from envs.protocol import EnvironmentFailed
from envs.worker import HEADER, frame
from rl_system.config.environment import EnvironmentConfig
from rl_system.origin import place_of_crash

STOP_TIMEOUT_S = 5.0
EXIT_TIMEOUT_S = 2.0
"""Longest between a worker's socket and the end of its process, which says why."""


class WorkerDied(ConnectionError):
    """A worker process is gone. details: where it stood, if it was ended by a signal."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.details = details


class WorkerProcess:
    """Calls raise EnvironmentFailed where the environment raised, WorkerDied where the process is gone."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.open: set[int] = set()
        self._config = config
        self._requests = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._gone: WorkerDied | None = None
        self._crashes = tempfile.TemporaryFile()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        """Raises EnvironmentFailed unless the process is ready within `start_timeout_s`."""
        ours, theirs = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        with theirs:
            # A session of its own: Ctrl-C is for the host, which ends its workers in its own order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "envs.worker", str(theirs.fileno()), str(self._crashes.fileno())],
                pass_fds=[theirs.fileno(), self._crashes.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                self._writer.write(frame(self._config))
                refused = await _read(reader)
        except TimeoutError:
            raise EnvironmentFailed(
                f"a worker process was not ready after {self._config.start_timeout_s:g} s"
            ) from None
        except (ConnectionError, asyncio.IncompleteReadError):
            died = await self._death()
            raise EnvironmentFailed(f"a worker process ended during its start ({died})", died.details) from None
        if refused is not None:
            raise EnvironmentFailed(*refused)
        self._reading = asyncio.get_running_loop().create_task(self._read_answers(reader))

    async def call(self, key: int, verb: str, argument: Any) -> Any:
        if self._gone is not None:
            raise self._gone
        request = next(self._requests)
        answer = self._pending[request] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(frame((request, key, verb, argument)))
            return await answer
        finally:
            self._pending.pop(request, None)

    async def where(self, key: int) -> tuple[str, str]:
        """Place and stack of what environment `key` is doing. Never returns from a process that does not run Python."""
        return await self.call(key, "where", None)

    def forget(self, key: int) -> None:
        if self._gone is None:
            self._writer.write(frame((next(self._requests), key, "close", None)))

    async def stop(self) -> None:
        """Ask, wait, kill; and reap."""
        if self._writer is not None:
            self._writer.close()
        if self._process is None:
            return
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also where nobody waits any longer for this to end
            self._process.kill()
        await asyncio.to_thread(self._process.wait)
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=STOP_TIMEOUT_S)
        self._crashes.close()

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                request, result, error = await _read(reader)
                answer = self._pending.get(request)
                if answer is None or answer.done():
                    continue  # Nobody waits any more: cancelled, or the environment was closed.
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(EnvironmentFailed(*error))
        except (ConnectionError, asyncio.IncompleteReadError):
            self._gone = await self._death()
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(self._gone)

    async def _death(self) -> WorkerDied:
        """Why the process is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, EXIT_TIMEOUT_S)
        code = self._process.poll()
        if code is None:
            return WorkerDied("it closed its socket")
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._crashes.seek(0)
        stood = self._crashes.read().decode(errors="replace")
        where = place_of_crash(stood)
        return WorkerDied(reason + (f", {where}" if where else ""), stood)


async def _read(reader: asyncio.StreamReader) -> Any:
    (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return pickle.loads(await reader.readexactly(length))
