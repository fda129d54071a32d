"""A worker process: steps environments that it is told about over a socket.

    python -m envs.worker FILE_DESCRIPTOR

A frame is a length (4 bytes, big-endian) and a pickle. The first frame in is the EnvironmentConfig, the first out None
(ready). Then requests `(request, key, verb, argument)` and answers `(request, result, error)` in any order. The process
ends when the socket closes, whatever its environments are doing (`os._exit`, for an ordinary exit would wait for
threads that may hang): a worker never outlives its host.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from envs.registry import list_tasks
from envs.stage import Stage
from rl_system.config.environment import EnvironmentConfig

HEADER = struct.Struct(">I")
THREADS = 256
"""Environments of one process that may be busy at once; waiting for a simulated user counts as busy."""


def frame(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def serve(connection: socket.socket) -> None:
    stream = connection.makefile("rb")
    config: EnvironmentConfig = _read(stream)
    list_tasks(config, config.split)  # Imports and parses now what every episode needs.
    stage = Stage(config)
    writing = threading.Lock()

    def answer(message: Any) -> None:
        try:
            with writing:
                connection.sendall(frame(message))
        except ConnectionError:
            os._exit(0)

    def handle(request: int, key: int, verb: str, argument: Any) -> None:
        try:
            result, error = stage.perform(key, verb, argument), None
        except Exception as raised:  # An environment is foreign code; its exception belongs to one episode.
            result, error = None, f"{raised!r}\n{traceback.format_exc()}"
        answer((request, result, error))

    answer(None)
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="environment")
    while True:
        pool.submit(handle, *_read(stream))


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
    serve(socket.socket(fileno=int(sys.argv[1])))
