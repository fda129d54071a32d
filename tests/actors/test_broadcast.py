"""Weights by broadcast, from a real trainer to real engines: everything but the device and its collective is what NCCL uses."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray

from actors.engine.errors import EngineBroken
from actors.engine.run_memory import clear_leftovers
from actors.rollout_worker import RolloutWorker
from actors.trainer import Trainer
from rl_system.config.run import RunConfig
from rl_system.records import NO_VERSION, Sequence, TrainBatch
from tests.models import save_tiny_family

TIMEOUT_S = 300
pytestmark = pytest.mark.slow
START_VERSION = 4


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "broadcast-test",
            "output": tmp_path_factory.mktemp("runs"),
            "model": {"path": str(save_tiny_family("qwen3_moe", tmp_path_factory.mktemp("model"))), "max_model_len": 512},
            "rollout": {"engine": {"kv_cache_gib": 0.1, "max_num_seqs": 4}},
            "executor": {"method": "tree"},
            "optimizer": {"learning_rate": 1e-2},
            "weights": {"transport": "gloo", "timeout_s": 60},
        }
    )


@pytest.fixture(scope="module")
def trainer(local_ray: None, config: RunConfig) -> Iterator[ray.actor.ActorHandle]:
    trainer = Trainer.options(num_cpus=0).remote(0, 1, config, config.model.path, START_VERSION)
    call(trainer.setup.remote())
    yield trainer
    ray.kill(trainer)


@pytest.fixture(scope="module")
def workers(local_ray: None, config: RunConfig) -> Iterator[list[ray.actor.ActorHandle]]:
    workers = [
        RolloutWorker.options(num_cpus=0).remote(config.model.path, config, START_VERSION, index) for index in range(2)
    ]
    call([worker.ready.remote() for worker in workers])
    yield workers
    for worker in workers:
        ray.kill(worker)
    clear_leftovers(config.directory, within_s=60)  # a killed worker is gone a moment later


def call(references):
    return ray.get(references, timeout=TIMEOUT_S)


def batch_of(seed: int) -> TrainBatch:
    ids = np.random.default_rng(seed).integers(3, 1000, 40).astype(np.int32)
    trained = np.arange(len(ids)) > 0
    zeros = np.zeros(len(ids), np.float32)
    advantages = np.where(trained, 1, 0).astype(np.float32)
    return TrainBatch.of(
        [Sequence(ids, trained, zeros - 10 * trained, np.where(trained, 0, NO_VERSION), advantages, trained / trained.sum())]
    )


def update(trainer: ray.actor.ActorHandle, seed: int) -> int:
    """One update; the version after it."""
    call(trainer.update.remote([ray.put(batch_of(seed))]))
    weights = call(trainer.publish.remote())
    assert weights.sender == trainer and weights.chunks == [] and weights.directory == ""
    return weights.version


def assert_served(trainer: ray.actor.ActorHandle, workers: list[ray.actor.ActorHandle], version: int) -> None:
    text = batch_of(99)
    expected = call(trainer.logprobs.remote(text))
    assert call([worker.ready.remote() for worker in workers]) == [version] * len(workers)
    for found in call([worker.prompt_logprobs.remote(text.token_ids) for worker in workers]):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_both_workers_serve_what_the_trainer_has_update_after_update(trainer, workers, config):
    before = call(workers[0].prompt_logprobs.remote(batch_of(99).token_ids))
    for seed in range(2):
        version = update(trainer, seed)
        in_flight = [worker.generate.remote(batch_of(5).token_ids, 200) for worker in workers]
        reports = call(trainer.broadcast.remote(workers))
        assert [report["version"] for report in reports] == [version] * 2
        size = sum(path.stat().st_size for path in Path(config.model.path).glob("*.safetensors"))
        assert all(report["seconds"] > 0 and report["bytes"] == size for report in reports)
        assert_served(trainer, workers, version)
        for turn in call(in_flight):
            assert set(turn.versions) <= {version - 1, version}
    after = call(workers[0].prompt_logprobs.remote(batch_of(99).token_ids))
    assert np.abs(after - before).max() > 0.1, "nothing was trained: this test shows nothing"


def test_a_group_of_other_workers_is_formed_when_it_is_asked_for(trainer, workers):
    version = update(trainer, 10)
    call(trainer.broadcast.remote(workers[1:]))
    assert_served(trainer, workers[1:], version)
    assert call(workers[0].ready.remote()) == version - 1
    call(trainer.broadcast.remote(workers))
    assert_served(trainer, workers, version)


def test_a_lost_worker_fails_the_broadcast_and_leaves_the_others_whole_or_broken_but_never_in_between(trainer, workers):
    version = update(trainer, 20)
    ray.kill(workers[1])
    with pytest.raises(ray.exceptions.RayError):
        call(trainer.broadcast.remote(workers))
    with pytest.raises(EngineBroken, match="given up halfway"):
        call(workers[0].ready.remote())
    assert version == START_VERSION + 4
