"""The host's side of one worker process (`envs.worker`): start it, call it, end it."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import socket
import subprocess
import sys
from typing import Any

from envs.protocol import EnvironmentFailed
from envs.worker import HEADER, frame
from rl_system.config.environment import EnvironmentConfig

STOP_TIMEOUT_S = 5.0


class WorkerProcess:
    """Calls raise EnvironmentFailed where the environment raised, ConnectionError where the process is gone."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.open: set[int] = set()
        self._config = config
        self._requests = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._gone: str | None = None

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
                [sys.executable, "-m", "envs.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                self._writer.write(frame(self._config))
                await _read(reader)
        except TimeoutError:
            raise EnvironmentFailed(
                f"a worker process was not ready after {self._config.start_timeout_s:g} s"
            ) from None
        except (ConnectionError, asyncio.IncompleteReadError):
            raise EnvironmentFailed(
                f"a worker process ended during its start (exit code {self._process.poll()})"
            ) from None
        self._reading = asyncio.get_running_loop().create_task(self._read_answers(reader))

    async def call(self, key: int, verb: str, argument: Any) -> Any:
        if self._gone is not None:
            raise ConnectionError(self._gone)
        request = next(self._requests)
        answer = self._pending[request] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(frame((request, key, verb, argument)))
            return await answer
        finally:
            self._pending.pop(request, None)

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
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=STOP_TIMEOUT_S)

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
                    answer.set_exception(EnvironmentFailed(error))
        except (ConnectionError, asyncio.IncompleteReadError):
            self._gone = f"exit code {self._process.poll()}"
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(ConnectionError(self._gone))


async def _read(reader: asyncio.StreamReader) -> Any:
    (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return pickle.loads(await reader.readexactly(length))
