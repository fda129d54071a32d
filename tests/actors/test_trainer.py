"""Trainers behind Ray: two ranks against one learner in this process."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import ray
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from actors.trainer import Trainer
from actors.trainers import TrainerGroup
from rl_system.config.run import RunConfig
from rl_system.records import Sequence, TrainBatch
from rl_system.training.checkpoint_directory import open_checkpoint
from rl_system.training.learner import Learner
from rl_system.training.loading import load_model
from rl_system.training.weights import weights_checksum
from tests.models import save_tiny_chat_model

TIMEOUT_S = 300


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "trainer-test",
            "output": tmp_path_factory.mktemp("runs"),
            "model": {"path": str(save_tiny_chat_model(tmp_path_factory.mktemp("model")))},
            "executor": {"method": "tree"},
            "optimizer": {"learning_rate": 1e-3},
            "weights": {"chunk_mib": 1},
        }
    )


@pytest.fixture(scope="module")
def batch() -> TrainBatch:
    generator = np.random.default_rng(0)
    prompt = generator.integers(3, 1000, 20)
    sequences = []
    for _ in range(4):
        ids = np.concatenate([prompt, generator.integers(3, 1000, 12)]).astype(np.int32)
        trained = np.arange(len(ids)) >= len(prompt)
        sequences.append(
            Sequence(
                token_ids=ids,
                trained=trained,
                behaviour_logprobs=np.where(trained, -10.8, 0).astype(np.float32),
                versions=np.where(trained, 0, -1).astype(np.int32),
                advantages=np.where(trained, generator.normal(), 0).astype(np.float32),
                weights=trained / (4 * 12),
            )
        )
    return TrainBatch.of(sequences)


@pytest.fixture(scope="module")
def learner(config, batch) -> Learner:
    """One learner that made the same update on the whole batch."""
    learner = Learner.of(config, load_model(config.model))
    learner.update(batch)
    return learner


@pytest.fixture(scope="module")
def trainers(local_ray, config, batch) -> list:
    """Two ranks after one update: three sequences on the first, one on the second."""
    actors = [Trainer.options(num_cpus=0).remote(rank, 2, config, config.model.path) for rank in range(2)]
    meeting = call(actors[0].host.remote("127.0.0.1"))
    call([actor.setup.remote(meeting) for actor in actors])
    parts = [[ray.put(batch.take(np.arange(3)))], [ray.put(batch.take(np.arange(3, 4)))]]
    call([actor.update.remote(part) for actor, part in zip(actors, parts, strict=True)])
    yield actors
    call([actor.close.remote() for actor in actors])
    for actor in actors:
        ray.kill(actor)


def call(references):
    return ray.get(references, timeout=TIMEOUT_S)


def test_published_weights_are_those_of_one_learner_on_the_whole_batch(trainers, learner):
    weights = call(trainers[0].publish.remote())
    chunks = call([chunk.content for chunk in weights.chunks])
    assert weights.version == 1 and len(chunks) > 1
    assert weights_checksum(chunks) == weights.checksum
    arrays = {name: array for chunk in chunks for name, array in chunk.items()}
    parameters = dict(learner.model.named_parameters())
    assert arrays.keys() == parameters.keys()
    for name, array in arrays.items():
        # AdamW turns rounding of a gradient near zero into part of a step of 1e-3.
        np.testing.assert_allclose(array, parameters[name].detach().numpy(), atol=2e-4, err_msg=name)
        assert np.abs(array - parameters[name].detach().numpy()).mean() < 1e-6


def test_logprobs_are_those_of_the_updated_policy(trainers, learner, batch):
    np.testing.assert_allclose(call(trainers[1].logprobs.remote(batch)), learner.logprobs(batch), atol=1e-3)


def test_a_checkpoint_of_two_trainers_is_loaded_by_one(trainers, config, tmp_path):
    saving = [actor.save_checkpoint.remote(tmp_path, 1, {"cursor": 5}, {"groups": b"abc"}) for actor in trainers]
    path = call(saving)[0]
    checkpoint = open_checkpoint(path, config.name)
    assert checkpoint.state == {"cursor": 5} and checkpoint.blob("groups") == b"abc"
    alone = Trainer.options(num_cpus=0).remote(0, 1, config, str(checkpoint.model_directory))
    call(alone.setup.remote())
    call(alone.load_checkpoint.remote(path))
    before, after = call([trainers[0].publish.remote(), alone.publish.remote()])
    assert (after.version, after.checksum) == (before.version, before.checksum)
    ray.kill(alone)


def test_the_directory_transport_publishes_a_path_with_all_parameters(local_ray, config, tmp_path):
    weights = config.weights.model_copy(update={"transport": "directory"})
    config = config.model_copy(update={"weights": weights, "output": tmp_path})
    trainer = Trainer.options(num_cpus=0).remote(0, 1, config, config.model.path, 4)
    call(trainer.setup.remote())
    published = call(trainer.publish.remote())
    assert published.version == 4
    assert Path(published.directory) == config.directory / "weights" / "version_4"
    expected = AutoModelForCausalLM.from_pretrained(config.model.path)
    sent = load_file(Path(published.directory) / "model.safetensors")
    assert all((sent[name] == parameter).all() for name, parameter in expected.named_parameters())
    ray.kill(trainer)


def test_two_trainers_that_share_a_model_publish_and_save_the_whole_of_it(local_ray, config, batch, tmp_path):
    allocation = config.allocation.model_copy(update={"trainer": 2, "tensor_parallel": 2, "mode": "off"})
    path = save_tiny_chat_model(tmp_path / "model", kv_heads=2)
    shared = config.model_copy(
        update={"allocation": allocation, "model": config.model.model_copy(update={"path": str(path)}), "output": tmp_path}
    )
    alone = Learner.of(shared, load_model(shared.model))
    alone.update(batch)
    trainers = [Trainer.options(num_cpus=0).remote(rank, 2, shared, str(path)) for rank in range(2)]
    meeting = call(trainers[0].host.remote("127.0.0.1"))
    call([trainer.setup.remote(meeting) for trainer in trainers])
    call([trainer.update.remote([ray.put(batch)]) for trainer in trainers])
    published, nothing = call([trainer.publish.remote() for trainer in trainers])
    assert nothing is None and published.version == 1
    arrays = {name: array for chunk in call([each.content for each in published.chunks]) for name, array in chunk.items()}
    assert arrays.keys() == dict(alone.model.named_parameters()).keys()
    for name, parameter in alone.model.named_parameters():
        np.testing.assert_allclose(arrays[name], parameter.detach().numpy(), atol=2e-4, err_msg=name)
        assert np.abs(arrays[name] - parameter.detach().numpy()).mean() < 1e-6, name
    logprobs = call([trainer.logprobs.remote(batch) for trainer in trainers])
    assert np.array_equal(*logprobs)
    saved = call([trainer.save_checkpoint.remote(tmp_path, 1, {}, {}) for trainer in trainers])[0]
    model = AutoModelForCausalLM.from_pretrained(saved / "model")
    assert all(np.array_equal(arrays[name], parameter.detach().numpy()) for name, parameter in model.named_parameters())
    for trainer in trainers:
        ray.kill(trainer)


# -- groups that change their size ------------------------------------------------------------------------------------


def form(old: list, new: list) -> None:
    """What `TrainerGroup` does, on the loopback."""
    left = call([trainer.hand_over.remote(len(new)) for trainer in old])
    meeting = call(new[0].host.remote("127.0.0.1", len(new))) if len(new) > 1 else None
    for_rank = [[each.shards[rank] for each in left] for rank in range(len(new))]
    call([t.regroup.remote(rank, len(new), meeting, left[0], for_rank[rank]) for rank, t in enumerate(new)])


def update(trainers: list, batch: TrainBatch) -> None:
    parts = np.array_split(np.arange(len(batch)), len(trainers))
    call([trainer.update.remote([ray.put(batch.take(part))]) for trainer, part in zip(trainers, parts, strict=True)])


def test_a_trainer_joins_and_leaves_and_the_policy_goes_on_as_if_nothing_had_happened(local_ray, config, batch):
    first = Trainer.options(num_cpus=0).remote(0, 1, config, config.model.path)
    second = Trainer.options(num_cpus=0).remote(1, 2, config, config.model.path)
    call([first.setup.remote(), second.load.remote()])
    update([first], batch)
    before = call(first.publish.remote())
    form([first], [first, second])
    published = call([first.publish.remote(), second.publish.remote()])
    assert {(each.version, each.checksum) for each in published} == {(1, before.checksum)}
    update([first, second], batch)
    published = call([first.publish.remote(), second.publish.remote()])
    assert published[0].checksum == published[1].checksum != before.checksum
    form([first, second], [first])
    update([first], batch)
    after = call(first.publish.remote())
    assert after.version == 3

    alone = Learner.of(config, load_model(config.model))
    for _ in range(3):
        alone.update(batch)
    chunks = call([chunk.content for chunk in after.chunks])
    arrays = {name: array for chunk in chunks for name, array in chunk.items()}
    for name, parameter in alone.model.named_parameters():
        assert np.abs(arrays[name] - parameter.detach().numpy()).mean() < 1e-5, name
    for trainer in (first, second):
        ray.kill(trainer)


def test_a_trainer_that_does_not_come_leaves_the_old_group_able_to_form_again(local_ray, config, batch):
    allocation = config.allocation.model_copy(update={"join_timeout_s": 1.0})
    impatient = config.model_copy(update={"allocation": allocation})
    first = Trainer.options(num_cpus=0).remote(0, 1, impatient, config.model.path)
    call(first.setup.remote())
    update([first], batch)
    before = call(first.publish.remote())
    left = call(first.hand_over.remote(2))
    meeting = call(first.host.remote("127.0.0.1", 2))
    with pytest.raises(RuntimeError, match="(?i)time"):
        call(first.regroup.remote(0, 2, meeting, left, [left.shards[0]]))
    call(first.regroup.remote(0, 1, None, left, left.shards))
    assert call(first.publish.remote()).checksum == before.checksum
    update([first], batch)
    assert call(first.publish.remote()).version == 2
    ray.kill(first)


def test_the_rank_that_published_leaves_and_its_weights_are_another_ones_before_they_are_gone(local_ray, config, batch):
    ranks = [Trainer.options(num_cpus=0).remote(rank, 2, config, config.model.path) for rank in range(2)]
    meeting = call(ranks[0].host.remote("127.0.0.1"))
    call([rank.setup.remote(meeting) for rank in ranks])
    update(ranks, batch)
    held = [call(ranks[0].publish.remote())]

    async def renew() -> None:
        held.append(await group.publish())

    group = TrainerGroup(config, Path(config.model.path), None, renew)
    group.ranks, group.devices = list(ranks), [2, 3]
    asyncio.run(group.release(2))
    assert (group.ranks, group.devices) == (ranks[1:], [3])
    lost, kept = held
    assert (kept.version, kept.checksum) == (lost.version, lost.checksum)
    assert weights_checksum(call([chunk.content for chunk in kept.chunks])) == kept.checksum
    origins = [{chunk.identity.split("-")[0] for chunk in weights.chunks} for weights in held]
    assert len(origins[0] | origins[1]) == 2  # none of what is kept belongs to the one that left
    update(group.ranks, batch)
    assert call(ranks[1].publish.remote()).version == 2
    ray.kill(ranks[1])
