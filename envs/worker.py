"""A worker process: steps environments that it is told about over a socket.

    python -m envs.worker SOCKET CRASHES

Both are file descriptors. A frame is a length (4 bytes, big-endian) and a pickle. The first frame in is the
EnvironmentConfig, the first out None (ready) or what keeps the worker from starting. Then requests `(request, key, verb,
argument)` and answers `(request, result, error)` in any order; an error is a message and details, as EnvironmentFailed has
them. Into CRASHES goes where a process stood that dies of a signal. The process ends when the socket closes, whatever its
environments are doing (`os._exit`, for an ordinary exit would wait for threads that may hang): a worker never outlives its
host.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from envs.protocol import EnvironmentFailed
from envs.registry import list_tasks
from envs.stage import THREADS, Stage
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.origin import details, explain

HEADER = struct.Struct(">I")
STOPPING_THREADS = 16
"""Threads that wait for agents which were told to stop; those that run agents may all be taken."""


def frame(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def serve(connection: socket.socket) -> None:
    stream = connection.makefile("rb")
    config: EnvironmentConfig = _read(stream)
    writing = threading.Lock()

    def answer(message: bytes) -> None:
        try:
            with writing:
                connection.sendall(message)
        except ConnectionError:
            os._exit(0)

    try:
        list_tasks(config, config.split)  # Imports and parses now what every episode needs.
    except UserError as error:
        answer(frame((str(error), details(error))))
        os._exit(1)
    stage = Stage(config)

    def handle(request: int, key: int, verb: str, argument: Any) -> None:
        try:
            message = frame((request, stage.perform(key, verb, argument), None))
        except EnvironmentFailed as failure:
            message = frame((request, None, (str(failure), failure.details)))
        except Exception as error:  # too large, say; the host must hear of it whatever it is
            text = f"what {verb} gave cannot be sent: {explain(error)}"
            message = frame((request, None, (text, details(error))))
        answer(message)

    answer(frame(None))
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="environment")
    stopping = ThreadPoolExecutor(STOPPING_THREADS, thread_name_prefix="stopping")
    while True:
        request, key, verb, argument = _read(stream)
        if verb == "stop":
            stopping.submit(handle, request, key, verb, argument)
        elif verb == "where":  # asked about one that hangs, perhaps when all threads do
            answer(frame((request, stage.where(key), None)))
        else:
            pool.submit(handle, request, key, verb, argument)


def _read(stream: Any) -> Any:
    try:
        header = stream.read(HEADER.size)
        body = stream.read(HEADER.unpack(header)[0]) if len(header) == HEADER.size else b""
    except ConnectionError:
        body = b""
    if not body:
        os._exit(0)
    return pickle.loads(body)


if __name__ == "__main__":
    faulthandler.enable(file=int(sys.argv[2]), all_threads=False)
    serve(socket.socket(fileno=int(sys.argv[1])))
