"""Every family of models, from files through trainer and publishing into a real engine and back into files."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from actors.engine.environment import prepare_process
from rl_system.config.load import build_config
from rl_system.config.run import RunConfig
from rl_system.executor.models import SUPPORTED
from rl_system.records import NO_VERSION, Sequence, TrainBatch, Turn, Weights
from rl_system.training.architecture import checked_shapes
from rl_system.training.learner import Learner
from rl_system.training.loading import load_model, load_tokenizer
from rl_system.training.model_files import load_parameters, save_model
from rl_system.training.parameter_files import parameter_files, tensor_shapes
from rl_system.training.publishing import ChunkPublisher, publish_directory
from rl_system.training.weights import saved_tensors
from tests.models import FAMILIES, disturb, save_tiny_family

TIMEOUT_S = 300
TOLERANCE = 1e-4
IN_EVERY_SUITE = "qwen3_moe"
"""The family whose names differ between trainer and engine, and whose weights an engine packs; the others are slow."""
CHUNK_BYTES = 1
"""Every layer is a chunk of its own."""


@ray.remote
class Engine:
    """One engine after another in one process: what costs most of a worker's start is paid once."""

    session = None

    async def start(self, directory: Path, config: RunConfig) -> None:
        prepare_process(config)
        from actors.engine.session import EngineSession

        self.session = await asyncio.to_thread(EngineSession, directory, config, 0, 0)
        await self.session.label()

    async def logprobs(self, ids: np.ndarray) -> np.ndarray:
        return await self.session.prompt_logprobs(ids)

    async def generate(self, ids: np.ndarray) -> Turn:
        return await self.session.generate(ids, 40, 1.0)

    async def load(self, weights: Weights) -> dict[str, float]:
        if weights.directory:
            return await self.session.load_directory(Path(weights.directory), weights.version)
        return await self.session.load_chunks(weights.chunks, weights.version, weights.checksum)

    async def stop(self) -> None:
        """Idempotent."""
        session, self.session = self.session, None
        if session is not None:
            await session.close()


@pytest.fixture(scope="module")
def process(local_ray: None) -> Iterator[ray.actor.ActorHandle]:
    process = Engine.options(num_cpus=0).remote()
    yield process
    ray.kill(process)


@pytest.fixture
def engine(process: ray.actor.ActorHandle) -> Iterator[ray.actor.ActorHandle]:
    """Stopped when the test is over, however it ends."""
    yield process
    call(process.stop.remote())


def call(reference):
    return ray.get(reference, timeout=TIMEOUT_S)


def text(seed: int, tokens: int = 60) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 1000, tokens).astype(np.int32)


def batch() -> TrainBatch:
    """Two sequences that share half of their tokens."""
    sequences = []
    for seed in (1, 2):
        ids = np.concatenate([text(0, 20), text(seed, 20)])
        trained = np.arange(len(ids)) >= 20
        behaviour = np.where(trained, -10, 0).astype(np.float32)
        advantages = np.where(trained, 1, 0).astype(np.float32)
        sequences.append(Sequence(ids, trained, behaviour, np.where(trained, 0, NO_VERSION), advantages, trained / 40))
    return TrainBatch.of(sequences)


def expected_logprobs(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """Of all tokens but the first, by one plain forward."""
    ids = torch.as_tensor(ids, dtype=torch.int64)
    with torch.no_grad():
        logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(1, ids[1:, None])[:, 0].numpy()


def assert_served(engine, model: PreTrainedModel, version: int) -> np.ndarray:
    """The engine scores and samples as `model` would; the scores."""
    ids = text(9)
    scored = call(engine.logprobs.remote(ids))
    np.testing.assert_allclose(scored[1:], expected_logprobs(model, ids), atol=TOLERANCE)
    turn = call(engine.generate.remote(ids))
    assert set(turn.versions) == {version}
    whole = expected_logprobs(model, np.concatenate([ids, turn.response_ids]))
    np.testing.assert_allclose(turn.logprobs, whole[len(ids) - 1 :], atol=TOLERANCE)
    return scored


def test_every_family_that_is_trained_is_tested_here() -> None:
    assert {config(vocab_size=8).model_type for config in FAMILIES.values()} == set(SUPPORTED)


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[] if each == IN_EVERY_SUITE else pytest.mark.slow) for each in FAMILIES]
)
def test_a_family_is_trained_published_served_and_saved_under_one_set_of_names(
    family: str, engine: ray.actor.ActorHandle, tmp_path: Path
) -> None:
    source = save_tiny_family(family, tmp_path / "source")
    settings = ["--model.path", str(source), "--executor.method", "tree", "--optimizer.learning_rate", "1e-2"]
    settings += ["--rollout.engine.kv_cache_gib", "0.1", "--output", str(tmp_path / "runs")]
    config = build_config({"name": "family"}, settings)
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    learner = Learner.of(config, model)

    # What a checkpoint holds is what transformers writes, and an engine starts from it.
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    save_model(model, tokenizer, checkpoint)
    assert checked_shapes(checkpoint) == tensor_shapes(parameter_files(source))
    oracle = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    call(engine.start.remote(checkpoint, config))
    before = assert_served(engine, oracle, 0)

    publisher = ChunkPublisher(CHUNK_BYTES, True, lambda arrays: {n: a.copy() for n, a in arrays.items()}, lambda put: put)
    learner.update(batch())
    report = call(engine.load.remote(publisher.publish(saved_tensors(model), 1)))
    assert report["bytes"] == sum(tensor.nbytes for tensor in saved_tensors(model).values())
    after = assert_served(engine, model, 1)
    assert np.abs(after - before).max() > 0.1, "nothing was trained: this test shows nothing"

    disturb(model, only="layers.1.mlp")
    report = call(engine.load.remote(publisher.publish(saved_tensors(model), 2)))
    assert report["bytes"] == sum(parameter.nbytes for parameter in model.model.layers[1].parameters())
    assert_served(engine, model, 2)

    disturb(model)
    call(engine.load.remote(publish_directory(saved_tensors(model), 3, tmp_path / "weights")))
    assert_served(engine, model, 3)
    load_parameters(oracle, tmp_path / "weights" / "version_3")
    np.testing.assert_array_equal(expected_logprobs(oracle, text(9)), expected_logprobs(model, text(9)))


def test_a_base_model_stops_where_its_template_ends_a_turn_though_no_file_of_it_says_so(
    engine: ray.actor.ActorHandle, tmp_path: Path
) -> None:
    source = save_tiny_family("llama", tmp_path)
    config = build_config(
        {"name": "base"}, ["--model.path", str(source), "--rollout.engine.kv_cache_gib", "0.1", "--output", str(tmp_path)]
    )
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    end, other = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    with torch.no_grad():
        # The last layer's bias drowns everything else, so that every token but the end of turn is out of the question.
        bias = model.model.layers[-1].mlp.down_proj.bias.fill_(1e4)
        model.model.norm.weight.fill_(1.0)
        model.lm_head.weight.zero_()[end] = bias.sign()
    model.config.eos_token_id = model.generation_config.eos_token_id = other
    model.save_pretrained(source)
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(source)
    call(engine.start.remote(source, config))
    turn = call(engine.generate.remote(text(3)))
    assert (turn.response_ids.tolist(), turn.finish_reason) == ([end], "stop")
