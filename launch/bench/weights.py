"""How long it takes until rollout workers serve new weights, and how many bytes move.

Real engines on this machine, idle while they are updated: what is measured is the update alone. One JSON object per
number of workers. `send_s` is what the trainer waits for (its parameters copied into the object store), `update_s` what
passes until the last worker serves them, `paused_s` the part of it in which no token is made, `bytes` what one worker
fetched. All parameters change from one update to the next, but those that `--frozen` names.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import torch
from ray.actor import ActorHandle
from transformers import PreTrainedModel

from actors.connection import private_cluster
from actors.engine.run_memory import remove_leftovers
from actors.rollout_worker import RolloutWorker
from launch.command import Parser, whole, wholes
from rl_system.config.run import RunConfig
from rl_system.strict_json import to_json
from rl_system.training.loading import load_model
from rl_system.training.prepared import model_directory
from rl_system.training.publishing import ChunkPublisher
from rl_system.training.weights import saved_tensors

START_TIMEOUT_S = 900.0
UPDATE_TIMEOUT_S = 600.0


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m launch.bench weights", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a prepared model's name or a directory")
    parser.add_argument("--workers", type=wholes(at_least=1), default=[1, 2], help="numbers of workers, separated by commas")
    parser.add_argument("--repeats", type=whole(at_least=1), default=3)
    parser.add_argument("--chunk-mib", type=whole(at_least=1), default=256)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--frozen", default="", help="how the names of parameters begin that do not change")
    parser.add_argument("--no-verify", dest="verify", action="store_false", help="skip the checksum")
    parser.add_argument("--json", action="store_true", help="one JSON object a number of workers")
    options = parser.parse_args(arguments)
    for result in run(options):
        print(to_json(result) if options.json else as_text(result), flush=True)
    return 0


def as_text(result: dict[str, Any]) -> str:
    return (
        f"{result['workers']} workers, {result['bytes'] / 2**20:.0f} MiB in {result['chunks']} chunks: sent in "
        f"{result['send_s']:.2f} s, served {result['update_s']:.2f} s later ({result['paused_s']:.2f} s without tokens)"
    )


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure; one result a number of workers. Raises UserError for a model that is not there."""
    directory = model_directory(options.model)
    counts = sorted(set(options.workers))
    with tempfile.TemporaryDirectory() as output:
        config = RunConfig.model_validate(
            {
                "name": "bench-weights",
                "output": output,
                "model": {"path": str(directory), "dtype": options.dtype},
                "rollout": {"engine": {"kv_cache_gib": 0.25, "max_num_seqs": 8}},
                "weights": {"chunk_mib": options.chunk_mib, "verify": options.verify},
            }
        )
        model = load_model(config.model)
        try:
            with private_cluster(num_cpus=max(counts), log_to_driver=False):
                yield from measurements(options, config, counts, model, str(directory))
        finally:
            remove_leftovers(config.directory)


def measurements(
    options: argparse.Namespace, config: RunConfig, counts: list[int], model: PreTrainedModel, directory: str
) -> Iterator[dict[str, Any]]:
    workers = [
        RolloutWorker.options(num_cpus=1).remote(directory, config, 0, index)
        for index in range(counts[-1])
    ]
    ray.get([worker.ready.remote() for worker in workers], timeout=START_TIMEOUT_S)
    publisher = ChunkPublisher(config.weights.chunk_mib << 20, options.verify, ray.put, ray.get)
    measure(model, publisher, workers, 1)  # the first update is always of everything
    change(model, options.frozen)
    measure(model, publisher, workers, 2)  # what changes together is in the same chunks from here on
    version = 2
    for count in counts:
        results = []
        for _ in range(options.repeats):
            version += 1
            change(model, options.frozen)
            results.append(measure(model, publisher, workers[:count], version))
        kind = {"workers": count, "dtype": options.dtype, "verify": options.verify, "frozen": options.frozen}
        yield kind | medians(results)
    ray.get([worker.close.remote() for worker in workers], timeout=UPDATE_TIMEOUT_S)


@torch.no_grad()
def change(model: PreTrainedModel, frozen: str) -> None:
    """Every parameter but those whose names begin with `frozen`."""
    for name, parameter in model.named_parameters():
        if not frozen or not name.startswith(frozen):
            parameter.mul_(1.001)


def measure(
    model: PreTrainedModel, publisher: ChunkPublisher, workers: Sequence[ActorHandle], version: int
) -> dict[str, float]:
    """One update of `workers` to the parameters of `model`."""
    started = time.monotonic()
    weights = publisher.publish(saved_tensors(model), version)
    sent = time.monotonic()
    reports = ray.get([worker.update_weights.remote(weights) for worker in workers], timeout=UPDATE_TIMEOUT_S)
    return {
        "bytes": max(report["bytes"] for report in reports),
        "chunks": len(weights.chunks),
        "send_s": sent - started,
        "update_s": time.monotonic() - sent,
        "paused_s": max(report["paused_s"] for report in reports),
    }


def medians(results: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(result[name] for result in results) for name in results[0]}
