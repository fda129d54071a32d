"""`python -m launch.bench endpoint`: what a call of an agent costs beside the engine's time.

Sessions call in step: all make their first call at once, then all their second, and so on, each with its whole history, as
clients do. `chat`, `responses` and `messages` are a server process as a run has it, called over HTTP in that protocol; `direct`
is the agent loop's own way in such a process, from the renderer to the parsed answer, without any server. An engine that
answers at once stands in for the engine's time, so that what is counted, CPU milliseconds of that process alone, is what
comes beside it. Each repetition starts fresh sessions, the ways take turns, and medians are given. `first_ms` is the turn that
tokenises the opening; `last_ms` over `second_ms` is what a longer history costs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np

from launch.bench.support.dialogue import PROTOCOLS, TOOLS, Connection, Protocol, Session, answered, said
from launch.bench.support.options import names
from launch.bench.support.output import Output
from launch.command import Parser, whole, wholes
from rl_system.chat.agent import Limits
from rl_system.chat.renderer import Renderer
from rl_system.config.model import ModelConfig
from rl_system.endpoint.parameters import Serving
from rl_system.endpoint.server import EndpointServer
from rl_system.errors import UserError
from rl_system.records import Turn
from rl_system.training.loading import load_tokenizer
from rl_system.training.prepared import model_directory

START_TIMEOUT_S = 300.0
TURN_TIMEOUT_S = 600.0
DIRECT = "direct"
ANSWERS = 64
"""Different ones that the engine gives."""


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    output = Output(options.json)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, str(model_directory(options.model)), options.answer), daemon=True)
    process.start()
    try:
        worker = _Worker(ours)
        worker.ask("ready", timeout_s=START_TIMEOUT_S)
        for count in options.sessions:
            results: dict[str, list[list[float]]] = {path: [] for path in [*options.protocols, DIRECT]}
            for path in results:
                _measure(worker, options, path, count, turns=2)  # imports, caches and the allocator
            for _ in range(options.repeats):
                for path, repeats in results.items():
                    repeats.append(_measure(worker, options, path, count, options.turns))
            for path, repeats in results.items():
                output(_record(path, count, repeats))
    finally:
        ours.close()
        process.join(timeout=10)
        process.kill()
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m launch.bench endpoint", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a prepared model's name or a directory, for its tokenizer")
    parser.add_argument("--protocols", type=names, default=["chat"], help=f"of {', '.join(PROTOCOLS)}, separated by commas")
    parser.add_argument("--sessions", type=wholes(at_least=1), default=[64, 256], help="that call at once, separated by commas")
    parser.add_argument("--turns", type=whole(at_least=2), default=20)
    parser.add_argument("--opening", type=whole(at_least=1), default=600, help="words of the system message")
    parser.add_argument("--message", type=whole(at_least=1), default=40, help="words of every other message")
    parser.add_argument("--answer", type=whole(at_least=1), default=40, help="words of every answer")
    parser.add_argument("--repeats", type=whole(at_least=1), default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object a line and nothing else on standard output")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.protocols if name not in PROTOCOLS]:
        raise UserError(f"--protocols names {unknown[0]!r}; there are {', '.join(PROTOCOLS)}")
    return options


def _record(path: str, sessions: int, repeats: list[list[float]]) -> dict[str, Any]:
    by_turn = [statistics.median(turn) for turn in zip(*repeats, strict=True)]
    return {
        "path": path,
        "sessions": sessions,
        "turns": len(by_turn),
        "cpu_ms": statistics.median(statistics.mean(turns) for turns in repeats),
        "first_ms": by_turn[0],
        "second_ms": by_turn[1],
        "last_ms": by_turn[-1],
        "by_turn_ms": by_turn,
    }


def _measure(worker: _Worker, options: argparse.Namespace, path: str, count: int, turns: int) -> list[float]:
    """CPU milliseconds a call, by turn."""
    if path == DIRECT:
        return worker.ask("direct", count, turns, options.opening, options.message)
    return asyncio.run(_call(worker, options, PROTOCOLS[path], count, turns))


async def _call(worker: _Worker, options: argparse.Namespace, protocol: Protocol, count: int, turns: int) -> list[float]:
    address, keys = worker.ask("open", count)
    connections = [Connection(address, key) for key in keys]
    try:
        await asyncio.gather(*(connection.open() for connection in connections))
        sessions = [
            Session(protocol, connection, number, options.opening, options.message)
            for number, connection in enumerate(connections)
        ]
        used = [worker.ask("cpu")]
        for _ in range(turns):
            await asyncio.wait_for(asyncio.gather(*(session.turn() for session in sessions)), TURN_TIMEOUT_S)
            used.append(worker.ask("cpu"))
    finally:
        for connection in connections:
            connection.close()
    worker.ask("close", keys)
    return [1e3 * (after - before) / count for before, after in itertools.pairwise(used)]


class _Worker:
    """This side of the process that is measured."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def ask(self, *request: Any, timeout_s: float = TURN_TIMEOUT_S) -> Any:
        if request != ("ready",):
            self._pipe.send(request)
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"the process that is measured did not answer within {timeout_s:g} s")
        return self._pipe.recv()


def _work(pipe: Pipe, model: str, words: int) -> None:
    """The other side."""
    asyncio.run(_serve(pipe, Renderer(load_tokenizer(ModelConfig(path=model))), words))


async def _serve(pipe: Pipe, renderer: Renderer, words: int) -> None:
    engine = _Engine(renderer, words)
    server = EndpointServer(renderer)
    await server.start()
    gc.collect()
    gc.freeze()  # as the servers of a run do
    most = 1 << 30
    limits = Limits(most, most, most, most, most, most, TURN_TIMEOUT_S)
    pipe.send(None)
    while True:
        try:
            command, *rest = await asyncio.to_thread(pipe.recv)
        except EOFError:
            return await server.stop()
        match command:
            case "cpu":
                pipe.send(time.process_time())
            case "open":
                keys = [server.open_session(str(number), engine, limits, Serving()) for number in range(rest[0])]
                pipe.send((server.base_url, keys))
            case "close":
                for key in rest[0]:
                    await server.close_session(key)
                pipe.send(None)
            case "direct":
                pipe.send(await _direct(renderer, engine, *rest))


class _Engine:
    """Answers at once."""

    def __init__(self, renderer: Renderer, words: int) -> None:
        texts = [answered(words, number) for number in range(ANSWERS)]
        self._answers = [np.append(renderer.tokenize(text), np.int32(renderer.end_id)).astype(np.int32) for text in texts]
        self._next = itertools.count()

    async def __call__(self, prompt_ids: np.ndarray, max_new_tokens: int, **_: Any) -> Turn:
        ids = self._answers[next(self._next) % ANSWERS]
        return Turn(prompt_ids, ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop")


async def _direct(renderer: Renderer, engine: _Engine, count: int, turns: int, opening: int, message: int) -> list[float]:
    """CPU milliseconds a turn of the agent loop's own way."""
    histories = [
        [{"role": "system", "content": said(opening, f"policy of {number}")}, {"role": "user", "content": said(message, f"{number}")}]
        for number in range(count)
    ]
    texts = [[said(message, f"{number} {turn}") for turn in range(turns)] for number in range(count)]
    dialogues: list[Any] = [None] * count
    answers: list[np.ndarray] = [np.empty(0, np.int32)] * count
    used = [time.process_time()]
    for turn in range(turns):
        for number in range(count):
            if turn == 0:
                dialogues[number] = renderer.dialogue(histories[number], TOOLS)
            else:
                new = [{"role": "user", "content": texts[number][turn - 1]}]
                dialogues[number] = dialogues[number].extended(answers[number], new)
            answer = await engine(dialogues[number].prompt_ids, 1 << 30)
            answers[number] = answer.response_ids
            renderer.parse(answer.response_ids)
        used.append(time.process_time())
    return [1e3 * (after - before) / count for before, after in itertools.pairwise(used)]
