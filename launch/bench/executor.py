"""`python -m launch.bench executor`: time and memory of the ways to train on one batch.

Every (method, block size) runs in a process of its own, so that peak memory is its own; the processes take turns, one
step each, so that a disturbance of the machine hits all alike. Only one runs at a time. `base_rss_mib` is what a process
holds after a step over the first sequence: model, gradients, and the code that libraries load and compile once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from launch.bench.support import memory
from launch.bench.support.options import add_model_options, names, objective, random_model
from launch.bench.support.output import Output
from launch.bench.support.tree_files import read_tree_file
from launch.command import Parser, place, whole, wholes
from rl_system.algorithms.objective import Objective
from rl_system.config.executor import ExecutorConfig
from rl_system.errors import UserError
from rl_system.executor import make_executor
from rl_system.executor.host_memory import give_back_freed_memory
from rl_system.executor.products import choose_library
from rl_system.records import TrainBatch
from rl_system.tree import build_tree

BLOCKED = ("tree", "auto")
"""Methods that a block size makes a difference to."""
STEP_TIMEOUT_S = 3600


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    tree = read_tree_file(options.trees)
    unique = len(build_tree(tree.batch))
    output = Output(options.json)
    # A forked child starts with everything imported; CUDA does not survive a fork.
    context = multiprocessing.get_context("fork" if options.device == "cpu" else "spawn")
    cases = [
        (method, size) for method in options.methods for size in (options.block_tokens if method in BLOCKED else [0])
    ]
    workers = [_Worker(context, options, method, size) for method, size in cases]
    try:
        for worker in workers:
            worker.prepare()
        for _ in range(options.repeats):
            for worker in workers:
                worker.step()
        for worker in workers:
            output(worker.record(tree.batch.sequence_tokens, unique))
    finally:
        for worker in workers:
            worker.stop()
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m launch.bench executor", description=__doc__.split("\n")[0])
    parser.add_argument("--trees", type=place(), required=True, help="a tree file")
    parser.add_argument("--methods", type=names, default=["dense", "dense_ckpt", "tree", "auto"])
    parser.add_argument("--block-tokens", type=wholes(at_least=0), default=[0], help="sizes to try; 0: no limit")
    parser.add_argument("--retain-tokens", type=whole(at_least=0), default=0)
    parser.add_argument("--repeats", type=whole(at_least=1), default=3)
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--objective", default="ppo")
    parser.add_argument("--products", choices=["blas", "onednn"], help="library of float32 products on the CPU; default: the fastest")
    parser.add_argument("--json", action="store_true")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    known = ExecutorConfig.model_fields["method"].annotation.__args__
    for method in options.methods:
        if method not in known:
            raise UserError(f"--methods names {method!r}, which is no executor; use some of {', '.join(known)}")
    return options


class _Worker:
    """One method at one block size, in a process of its own."""

    def __init__(self, context: Any, options: argparse.Namespace, method: str, block_tokens: int) -> None:
        self.method, self.block_tokens = method, block_tokens
        self.steps: list[dict[str, Any]] = []
        self._ours, theirs = context.Pipe()
        config = ExecutorConfig(method=method, block_tokens=block_tokens, retain_tokens=options.retain_tokens)
        self._process = context.Process(target=_serve, args=(theirs, options, config), daemon=True)
        self._process.start()
        theirs.close()

    def prepare(self) -> None:
        self._answer()

    def step(self) -> None:
        self._ours.send("step")
        self.steps.append(self._answer())

    def record(self, sequence_tokens: int, unique_tokens: int) -> dict[str, Any]:
        last = self.steps[-1]
        cpu_s = [step["cpu_s"] for step in self.steps]
        return {
            "method": self.method,
            "block_tokens": self.block_tokens,
            "cpu_s": cpu_s,
            "median_cpu_s": statistics.median(cpu_s),
            "wall_s": [step["wall_s"] for step in self.steps],
            "sequence_tokens": sequence_tokens,
            "unique_tokens": unique_tokens,
            **{name: last[name] for name in ("recomputed_tokens", "blocks", "peak_live_tokens")},
            "peak_rss_mib": max(step["peak_mib"] for step in self.steps),
            "base_rss_mib": self.steps[0]["base_mib"],
            "ran": last["method"],
            "reason": last["reason"],
            "loss": last["loss"],
        }

    def stop(self) -> None:
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()

    def _answer(self) -> dict[str, Any]:
        if not self._ours.poll(STEP_TIMEOUT_S):
            raise RuntimeError(f"{self.method} at {self.block_tokens} gave no answer within {STEP_TIMEOUT_S} s")
        try:
            answer = self._ours.recv()
        except EOFError:
            raise RuntimeError(f"the process of {self.method} at {self.block_tokens} ended; see its output") from None
        if isinstance(answer, UserError):
            raise answer
        return answer


def _serve(connection: Connection, options: argparse.Namespace, config: ExecutorConfig) -> None:
    """A worker process: one step for every message, with a result for each; the first answer says that it is ready."""
    torch.set_num_threads(options.threads)
    if options.products:
        choose_library(options.products)
    tree = read_tree_file(options.trees)
    positions = int(tree.batch.lengths().max())
    try:
        model = random_model(options, tree.vocabulary, positions, options.dtype)
        executor = make_executor(model, config)
        loss = objective(options.objective)
    except UserError as error:
        connection.send(error)
        return
    _warm_up(model, config, tree.batch.take(np.array([0])), loss)
    base = memory.resident_mib() if options.device == "cpu" else _cuda_mib()
    connection.send({})
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        _reset_peak(options.device)
        cpu, wall = time.process_time(), time.perf_counter()
        result = executor.step(tree.batch, loss)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        report = result.report
        connection.send(
            {
                "cpu_s": cpu,
                "wall_s": wall,
                "recomputed_tokens": report.recomputed_tokens,
                "blocks": report.blocks,
                "peak_live_tokens": report.peak_live_tokens,
                "method": report.method,
                "reason": report.reason,
                "loss": result.loss,
                "base_mib": base,
                "peak_mib": memory.peak_resident_mib() if options.device == "cpu" else _cuda_mib(),
            }
        )


def _warm_up(model: PreTrainedModel, config: ExecutorConfig, batch: TrainBatch, loss: Objective) -> None:
    """Everything that a process loads, compiles or allocates once, whatever it trains on; gradients are left at zero."""
    for method in ("dense", "tree"):  # not `auto` itself, which would learn from it
        make_executor(model, config.model_copy(update={"method": method})).step(batch, loss)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    give_back_freed_memory()


def _reset_peak(device: str) -> None:
    if device == "cpu":
        memory.reset_peak()
    else:
        torch.cuda.reset_peak_memory_stats()


def _cuda_mib() -> float:
    return torch.cuda.max_memory_allocated() / 2**20
