"""A real engine behind the real actor, held against transformers on the same weights."""

import contextlib
import copy
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import psutil
import pytest
import ray
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from actors.engine.errors import EngineBroken, PromptTooLong, WeightsRejected
from actors.engine.run_memory import clear_leftovers, remove_leftovers, run_directory
from actors.rollout_worker import RolloutWorker
from rl_system.allocation.handover import ABORTED, OVERDUE
from rl_system.config.run import RunConfig
from rl_system.records import Turn, WeightChunk, Weights
from rl_system.training.publishing import ChunkPublisher
from rl_system.training.weights import export_weights, saved_tensors, weights_checksum
from tests.actors.conftest import STOP_ID, VOCABULARY

TOLERANCE = 1e-4
CPU_BLOCK_TOKENS = 32
"""Of the prefix cache: see `actors.engine.construction`, which cannot be imported here without vLLM."""
FIRST_VERSION = 3
CHUNK_BYTES = 200_000


class Served:
    """The worker under test and the policy that it should be serving."""

    def __init__(self, worker: ray.actor.ActorHandle, model: PreTrainedModel, config: RunConfig) -> None:
        self.worker = worker
        self.model = model
        self.config = config
        self.version = FIRST_VERSION

    def call(self, method: str, *arguments, **named):
        return ray.get(getattr(self.worker, method).remote(*arguments, **named), timeout=120)

    def send(
        self, model: PreTrainedModel, *, checksum: str | None = None, change: Callable | None = None
    ) -> ray.ObjectRef:
        """Start an update to `model`'s weights as the next version. `change` edits the arrays on the way."""
        chunks = [dict(chunk) for chunk in export_weights(model, CHUNK_BYTES)]
        assert len(chunks) > 2, "an update in one chunk tests nothing about chunks"
        sent = weights_checksum(chunks) if checksum is None else checksum
        if change is not None:
            change(chunks)
        weights = Weights(self.version + 1, [WeightChunk(ray.put(chunk)) for chunk in chunks], sent)
        return self.worker.update_weights.remote(weights)

    def send_files(self, model: PreTrainedModel, directory: Path) -> None:
        """The three calls of an update by broadcast, with files in place of a broadcast that needs a GPU."""
        model.save_pretrained(directory)
        self.call("begin_broadcast")
        self.call("receive_broadcast", {"paths": [str(path) for path in directory.glob("*.safetensors")]})
        self.call("end_broadcast", self.version + 1)
        self.model, self.version = model, self.version + 1

    def update(self, model: PreTrainedModel) -> dict:
        result = ray.get(self.send(model), timeout=120)
        self.model, self.version = model, self.version + 1
        return result

    def changed_model(self) -> PreTrainedModel:
        """The policy after an update large enough that no logprob stays the same."""
        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        return model


@pytest.fixture(scope="module")
def workers(
    local_ray: None, tiny_model_directory: Path, rollout_config: RunConfig
) -> Iterator[list[ray.actor.ActorHandle]]:
    """Two workers of one run on one node. Engines take long to start: these serve all tests of the module."""
    workers = [
        RolloutWorker.options(num_cpus=1).remote(str(tiny_model_directory), rollout_config, FIRST_VERSION, index)
        for index in range(2)
    ]
    assert ray.get([worker.ready.remote() for worker in workers], timeout=500) == [FIRST_VERSION] * 2
    yield workers
    for worker in workers:
        ray.kill(worker)
    clear_leftovers(rollout_config.directory, within_s=60)  # a killed worker is gone a moment later


@pytest.fixture(scope="module")
def served(workers: list[ray.actor.ActorHandle], tiny_model_directory: Path, rollout_config: RunConfig) -> Served:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_directory, dtype=torch.float32)
    return Served(workers[0], model, rollout_config)


def prompt(tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(STOP_ID + 1, VOCABULARY, tokens).astype(np.int32)


def logprobs_of(model: PreTrainedModel, token_ids: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """[tokens]: the oracle, one plain forward; 0 at position 0."""
    ids = torch.as_tensor(token_ids, dtype=torch.int64)
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1] / temperature
    taken = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    return np.concatenate([[0.0], taken.numpy()])


def response_logprobs(model: PreTrainedModel, turn: Turn, temperature: float = 1.0) -> np.ndarray:
    ids = np.concatenate([turn.prompt_ids, turn.response_ids])
    return logprobs_of(model, ids, temperature)[len(turn.prompt_ids) :]


def assert_on_policy(served: Served, turn: Turn) -> None:
    assert set(turn.versions) == {served.version}
    np.testing.assert_allclose(turn.logprobs, response_logprobs(served.model, turn), atol=TOLERANCE)


def sample_long(served: Served, count: int) -> list[ray.ObjectRef]:
    """Start `count` responses that run for seconds unless they stop, and wait until the engine works on them."""
    before = served.call("statistics")["finished_requests"]
    references = [served.worker.generate.remote(prompt(200, seed), 800) for seed in range(count)]
    deadline = time.monotonic() + 60
    while (seen := served.call("statistics"))["running"] + seen["finished_requests"] - before < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return references


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(served: Served, temperature: float) -> None:
    turn = served.call("generate", prompt(50), 40, temperature)
    assert turn.response_ids.dtype == np.int32 and turn.logprobs.dtype == np.float32
    assert turn.versions.tolist() == [served.version] * len(turn.response_ids)
    np.testing.assert_array_equal(turn.prompt_ids, prompt(50))
    np.testing.assert_allclose(turn.logprobs, response_logprobs(served.model, turn, temperature), atol=TOLERANCE)


def test_temperature_zero_takes_the_likeliest_token_and_still_returns_logprobs(served: Served) -> None:
    turn = served.call("generate", prompt(30), 20, 0.0)
    ids = torch.as_tensor(np.concatenate([turn.prompt_ids, turn.response_ids])).long()
    with torch.no_grad():
        likeliest = served.model(ids[None]).logits[0].argmax(-1)
    np.testing.assert_array_equal(turn.response_ids, likeliest[29:-1])
    np.testing.assert_allclose(turn.logprobs, response_logprobs(served.model, turn), atol=TOLERANCE)


def test_a_stop_token_ends_the_response_and_is_part_of_it(served: Served) -> None:
    turns = ray.get([served.worker.generate.remote(prompt(20, seed), 400) for seed in range(16)], timeout=120)
    assert {turn.finish_reason for turn in turns} == {"stop", "length"}
    for turn in turns:
        assert (turn.finish_reason == "stop") == (turn.response_ids[-1] == STOP_ID)
        assert STOP_ID not in turn.response_ids[:-1]
        assert turn.finish_reason == "stop" or len(turn.response_ids) == 400


def test_prompt_logprobs_are_those_of_the_given_tokens(served: Served) -> None:
    token_ids = prompt(300)
    scored = served.call("prompt_logprobs", token_ids)
    assert scored.dtype == np.float32 and scored[0] == 0
    np.testing.assert_allclose(scored, logprobs_of(served.model, token_ids), atol=TOLERANCE)


@pytest.mark.parametrize(("tokens", "new"), [(1000, 25), (1025, 1), (0, 5), (10, 0)])
def test_a_request_that_does_not_fit_is_refused_before_the_engine_sees_it(
    served: Served, tokens: int, new: int
) -> None:
    before = served.call("statistics")["finished_requests"]
    with pytest.raises(PromptTooLong, match="max_model_len 1024"):
        served.call("generate", prompt(tokens), new)
    assert served.call("statistics")["finished_requests"] == before


def test_every_span_of_a_response_matches_the_weights_of_its_version(served: Served) -> None:
    models = {served.version: served.model}
    in_flight = sample_long(served, 8)
    for _ in range(2):
        model = served.changed_model()
        served.update(model)
        models[served.version] = model
        time.sleep(0.1)
    turns = ray.get(in_flight, timeout=120)
    assert any(len(set(turn.versions)) == 3 for turn in turns), "no version advanced inside a response"
    for turn in turns:
        assert np.all(np.diff(turn.versions) >= 0)
        for version, model in models.items():
            span = turn.versions == version
            expected = response_logprobs(model, turn)
            np.testing.assert_allclose(turn.logprobs[span], expected[span], atol=TOLERANCE)


def test_after_an_update_a_cached_prefix_is_computed_again(served: Served) -> None:
    served.call("generate", prompt(300), 2)
    cached = served.call("statistics")["cached_prompt_tokens"]
    served.call("generate", prompt(300), 2)
    cached += 9 * CPU_BLOCK_TOKENS
    assert served.call("statistics")["cached_prompt_tokens"] == cached, "the prefix was not cached at all"
    served.update(served.changed_model())
    assert_on_policy(served, served.call("generate", prompt(300), 20))
    assert served.call("statistics")["cached_prompt_tokens"] == cached


def test_requests_issued_during_an_update_are_answered_by_one_of_its_two_versions(served: Served) -> None:
    old, model = served.version, served.changed_model()
    update = served.send(model)
    requests = [served.worker.generate.remote(prompt(10, seed), 20) for seed in range(8)]
    ray.get(update, timeout=120)
    served.model, served.version = model, old + 1
    for turn in ray.get(requests, timeout=120):
        assert set(turn.versions) <= {old, served.version}
    assert_on_policy(served, served.call("generate", prompt(10), 20))


def drop_one(chunks: list[dict]) -> None:
    chunks[1].popitem()


def add_one(chunks: list[dict]) -> None:
    chunks[0]["model.layers.9.mlp.up_proj.weight"] = np.zeros((256, 128), np.float32)


def flatten_one(chunks: list[dict]) -> None:
    name, array = chunks[0].popitem()
    chunks[0][name] = array.reshape(-1)


def flip_one_bit(chunks: list[dict]) -> None:
    name, array = chunks[1].popitem()
    chunks[1][name] = array.copy()
    chunks[1][name].view(np.uint8).reshape(-1)[7] ^= 1


def turn_to_integers(chunks: list[dict]) -> None:
    name, array = chunks[0].popitem()
    chunks[0][name] = array.astype(np.int64)


@pytest.mark.parametrize("change", [drop_one, add_one, flatten_one, flip_one_bit, turn_to_integers])
def test_a_wrong_update_is_refused_and_the_old_version_goes_on(served: Served, change: Callable) -> None:
    in_flight = served.worker.generate.remote(prompt(20), 50)
    with pytest.raises(WeightsRejected):
        ray.get(served.send(served.changed_model(), change=change), timeout=120)
    assert served.call("ready") == served.version
    assert_on_policy(served, ray.get(in_flight, timeout=120))
    assert_on_policy(served, served.call("generate", prompt(30), 20))


def test_weights_of_another_dtype_are_converted(served: Served) -> None:
    model = served.changed_model()
    for parameter in model.parameters():
        parameter.data = parameter.to(torch.bfloat16).to(torch.float32)
    sent = copy.deepcopy(model).to(torch.bfloat16)
    assert next(export_weights(sent, CHUNK_BYTES)).popitem()[1].dtype == ml_dtypes.bfloat16
    served.update(sent)
    served.model = model
    assert_on_policy(served, served.call("generate", prompt(60), 40))


def test_a_tied_output_head_that_is_sent_too_changes_nothing(served: Served) -> None:
    model = served.changed_model()

    def send_head(chunks: list[dict]) -> None:
        chunks[-1]["lm_head.weight"] = chunks[0]["model.embed_tokens.weight"]

    chunks = list(export_weights(model, CHUNK_BYTES))
    send_head(chunks)
    ray.get(served.send(model, change=send_head, checksum=weights_checksum(chunks)), timeout=120)
    served.model, served.version = model, served.version + 1
    assert_on_policy(served, served.call("generate", prompt(60), 40))


@pytest.fixture
def publisher() -> ChunkPublisher:
    return ChunkPublisher(CHUNK_BYTES, True, ray.put, ray.get)


def publish(served: Served, publisher: ChunkPublisher, model: PreTrainedModel) -> float:
    """An update as a trainer makes it; the bytes that the worker fetched."""
    report = served.call("update_weights", publisher.publish(saved_tensors(model), served.version + 1))
    served.model, served.version = model, served.version + 1
    return report["bytes"]


def test_only_layers_that_changed_are_fetched_and_every_weight_served_is_new(
    served: Served, publisher: ChunkPublisher
) -> None:
    whole = sum(parameter.nbytes for parameter in served.model.parameters())
    assert publish(served, publisher, served.changed_model()) == whole
    model = copy.deepcopy(served.model)
    with torch.no_grad():
        # One of three matrices that the engine keeps as one.
        model.model.layers[1].self_attn.q_proj.weight.mul_(1.5)
    in_flight = sample_long(served, 2)
    assert publish(served, publisher, model) == sum(each.nbytes for each in model.model.layers[1].parameters())
    ray.get(in_flight, timeout=60)
    assert_on_policy(served, served.call("generate", prompt(60), 40))
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.01)  # the output head is tied to it
    assert publish(served, publisher, model) == model.model.embed_tokens.weight.nbytes
    assert_on_policy(served, served.call("generate", prompt(60), 40))


def test_an_update_in_which_nothing_changed_fetches_nothing_and_has_its_version(
    served: Served, publisher: ChunkPublisher
) -> None:
    publish(served, publisher, served.changed_model())
    in_flight = sample_long(served, 2)
    assert publish(served, publisher, copy.deepcopy(served.model)) == 0
    for turn in ray.get(in_flight, timeout=60):
        np.testing.assert_allclose(turn.logprobs, response_logprobs(served.model, turn), atol=TOLERANCE)
    assert_on_policy(served, served.call("generate", prompt(60), 40))


def test_what_came_another_way_in_between_is_not_taken_for_what_was_held(
    served: Served, publisher: ChunkPublisher, tmp_path: Path
) -> None:
    model = served.changed_model()
    assert publish(served, publisher, model) > 0
    served.send_files(served.changed_model(), tmp_path)
    assert publish(served, publisher, model) == sum(parameter.nbytes for parameter in model.parameters())
    assert_on_policy(served, served.call("generate", prompt(60), 40))


def test_a_chunk_that_is_not_what_its_identity_promises_is_noticed_by_the_sum_of_the_whole(
    served: Served, publisher: ChunkPublisher
) -> None:
    publish(served, publisher, served.changed_model())
    held = publisher.publish(saved_tensors(served.model), served.version).chunks[0]
    weights = publisher.publish(saved_tensors(served.changed_model()), served.version + 1)
    assert ray.get(held.content).keys() == ray.get(weights.chunks[0].content).keys()
    wrong = [WeightChunk(weights.chunks[0].content, held.identity), *weights.chunks[1:]]
    with pytest.raises(WeightsRejected, match="checksum"):
        served.call("update_weights", Weights(served.version + 1, wrong, weights.checksum))
    assert_on_policy(served, served.call("generate", prompt(60), 40))


def test_a_seed_gives_the_same_response_whatever_else_is_sampled(served: Served) -> None:
    alone = served.call("generate", prompt(40), 60, 1.0, seed=5)
    others = [served.worker.generate.remote(prompt(30, seed), 60, 1.0) for seed in range(6)]
    among = served.call("generate", prompt(40), 60, 1.0, seed=5)
    ray.get(others, timeout=60)
    np.testing.assert_array_equal(among.response_ids, alone.response_ids)
    another = served.call("generate", prompt(40), 60, 1.0, seed=6)
    assert another.response_ids.tolist() != alone.response_ids.tolist()


def test_an_update_in_steps_keeps_requests_and_serves_the_new_weights(served: Served, tmp_path: Path) -> None:
    in_flight = sample_long(served, 4)
    old = served.version
    served.send_files(served.changed_model(), tmp_path)
    for turn in ray.get(in_flight, timeout=60):
        assert set(turn.versions) <= {old, served.version}
    assert_on_policy(served, served.call("generate", prompt(60), 40))


def test_weights_in_a_directory_are_served_as_well(served: Served, tmp_path: Path) -> None:
    model = served.changed_model()
    model.save_pretrained(tmp_path, max_shard_size="400KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    served.call("update_weights", Weights(served.version + 1, directory=str(tmp_path)))
    served.model, served.version = model, served.version + 1
    assert_on_policy(served, served.call("generate", prompt(60), 40))


@pytest.mark.parametrize("content", [None, b"", b"not a safetensors file"])
def test_a_directory_that_holds_no_weights_is_refused(served: Served, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsRejected):
        served.call("update_weights", Weights(served.version + 1, directory=str(tmp_path)))
    assert_on_policy(served, served.call("generate", prompt(20), 10))


def test_updates_that_overlap_are_applied_in_the_order_they_were_sent(served: Served) -> None:
    first, second = served.changed_model(), served.changed_model()
    update = served.send(first)
    served.version += 1
    last = served.send(second)
    ray.get([update, last], timeout=120)
    served.model, served.version = second, served.version + 1
    assert_on_policy(served, served.call("generate", prompt(60), 40))


def test_a_cancelled_request_leaves_the_engine(served: Served) -> None:
    for reference in sample_long(served, 3):
        ray.cancel(reference)
    deadline = time.monotonic() + 10
    while served.call("statistics")["requests"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert_on_policy(served, served.call("generate", prompt(20), 10))


def test_an_update_leaves_nothing_in_shared_memory(served: Served) -> None:
    served.update(served.changed_model())
    assert not list(run_directory(served.config.directory).glob("*.safetensors"))


def test_statistics_count_what_was_generated_and_the_time_it_took(served: Served) -> None:
    before = served.call("statistics")
    turn = served.call("generate", prompt(40), 200)
    after = served.call("statistics")
    assert after["generated_tokens"] - before["generated_tokens"] == len(turn.response_ids)
    assert after["prompt_tokens"] - before["prompt_tokens"] == 40
    assert after["busy_s"] > before["busy_s"] and after["running"] == after["waiting"] == 0
    assert after["version"] == served.version and after["updates"] == before["updates"]


def engine_of(worker: ray.actor.ActorHandle) -> psutil.Process:
    pid = ray.get(worker.__ray_call__.remote(lambda actor: os.getpid()), timeout=60)
    children = psutil.Process(pid).children(recursive=True)
    assert children, f"the rollout worker {pid} has no process for its engine"
    return max(children, key=lambda child: child.memory_info().rss)


def shared_memory_of(engine: psutil.Process) -> list[Path]:
    """The semaphores that the engine's process names after itself."""
    return list(Path("/dev/shm").glob(f"sem.loky-{engine.pid}-*"))


def test_workers_of_one_run_sample_different_responses(workers: list[ray.actor.ActorHandle]) -> None:
    first, second = ray.get([worker.generate.remote(prompt(20), 50) for worker in workers], timeout=60)
    assert first.response_ids.tolist() != second.response_ids.tolist()


def test_a_turn_that_was_handed_over_ends_on_another_worker(
    served: Served, workers: list[ray.actor.ActorHandle]
) -> None:
    in_flight = sample_long(served, 8)
    ended = served.call("hand_over")
    parts = [part for part in ray.get(in_flight, timeout=60) if part.finish_reason == ABORTED]
    assert len(parts) == ended > 0, "all responses ended before they could be handed over"
    resumed = [workers[1].generate.remote(part.prompt_ids, len(part.response_ids) + 5, prefix=part) for part in parts]
    for part, turn in zip(parts, ray.get(resumed, timeout=60), strict=True):
        begun = len(part.response_ids)
        np.testing.assert_array_equal(turn.response_ids[:begun], part.response_ids)
        np.testing.assert_array_equal(turn.versions[:begun], part.versions)
        np.testing.assert_array_equal(turn.logprobs[:begun], part.logprobs)
        assert begun < len(turn.response_ids) <= begun + 5 and turn.finish_reason in ("stop", "length")
    assert_on_policy(served, served.call("generate", prompt(20), 10))


def test_two_workers_of_a_node_take_one_update_together(served: Served, workers: list[ray.actor.ActorHandle]) -> None:
    model = served.changed_model()
    chunks = list(export_weights(model, CHUNK_BYTES))
    weights = Weights(served.version + 1, [WeightChunk(ray.put(chunk)) for chunk in chunks], weights_checksum(chunks))
    ray.get([worker.update_weights.remote(weights) for worker in workers], timeout=120)
    served.model, served.version = model, weights.version
    for worker in workers:
        assert_on_policy(served, ray.get(worker.generate.remote(prompt(20), 20), timeout=60))
    assert not list(run_directory(served.config.directory).glob("*.safetensors"))


@contextlib.contextmanager
def turns_may_take(worker: ray.actor.ActorHandle, seconds: float) -> Iterator[None]:
    """As `rollout.request_timeout_s`, of an engine that runs."""

    def limit(seconds: float) -> float:
        def change(actor) -> float:
            requests = actor._session._requests
            before, requests._limit_s = requests._limit_s, seconds
            return before

        return ray.get(worker.__ray_call__.remote(change), timeout=60)

    before = limit(seconds)
    yield
    limit(before)


def test_a_turn_that_takes_too_long_comes_back_with_its_tokens_and_is_ended_by_another_worker(
    served: Served, workers: list[ray.actor.ActorHandle]
) -> None:
    with turns_may_take(served.worker, 0.3):
        parts = ray.get([served.worker.generate.remote(prompt(200, seed), 800) for seed in range(8)], timeout=120)
    late = [part for part in parts if part.finish_reason == OVERDUE]
    assert late and all(0 < len(part.response_ids) < 800 for part in late)
    assert served.call("ready") == served.version and served.call("statistics")["requests"] == 0
    resumed = [workers[1].generate.remote(part.prompt_ids, len(part.response_ids) + 5, prefix=part) for part in late]
    for part, turn in zip(late, ray.get(resumed, timeout=60), strict=True):
        begun = len(part.response_ids)
        np.testing.assert_array_equal(turn.response_ids[:begun], part.response_ids)
        assert begun < len(turn.response_ids) <= begun + 5 and turn.finish_reason in ("stop", "length")
        np.testing.assert_allclose(turn.logprobs, response_logprobs(served.model, turn), atol=TOLERANCE)


def test_waiting_in_the_engines_queue_is_not_the_engines_time(served: Served) -> None:
    places = served.config.rollout.engine.max_num_seqs
    began = time.monotonic()
    with turns_may_take(served.worker, 1.0):
        # Until the first ones are taken out, after their second, there is no place for the others.
        first = [served.worker.generate.remote(prompt(200, seed), 800) for seed in range(2 * places)]
        waiting = [served.worker.generate.remote(prompt(20, seed), 3) for seed in range(4)]
        turns = ray.get(waiting, timeout=120)
        waited = time.monotonic() - began
        taken_out = ray.get(first, timeout=120)
    assert {turn.finish_reason for turn in turns} <= {"stop", "length"}
    assert OVERDUE in {turn.finish_reason for turn in taken_out}
    assert waited > 1.0, "nothing waited: this test shows nothing"


def test_a_score_is_no_turn_and_is_not_handed_over(served: Served) -> None:
    in_flight = sample_long(served, 4)
    score = served.worker.prompt_logprobs.remote(prompt(900))
    served.call("hand_over")
    np.testing.assert_allclose(
        ray.get(score, timeout=60), logprobs_of(served.model, prompt(900)), atol=TOLERANCE
    )
    ray.get(in_flight, timeout=60)


# The tests below end the module's engines: they stay last.


def test_an_engine_that_hangs_is_found_by_the_heartbeat_and_its_requests_fail(
    served: Served, workers: list[ray.actor.ActorHandle]
) -> None:
    neighbour, engine = workers[1], engine_of(workers[1])
    in_flight = neighbour.generate.remote(prompt(20), 900)
    ray.get(neighbour.ready.remote(), timeout=60)
    engine.send_signal(signal.SIGSTOP)
    try:
        for _ in range(3):  # a moment of silence says nothing
            assert ray.get(neighbour.ready.remote(), timeout=60) == served.version
            time.sleep(0.1)

        def allow_a_second(actor) -> None:
            actor._session._pulse._beat.limit_s = 1.0

        ray.get(neighbour.__ray_call__.remote(allow_a_second), timeout=60)
        time.sleep(1.5)
        with pytest.raises(EngineBroken, match="the engine hangs"):
            ray.get(neighbour.ready.remote(), timeout=60)
        with pytest.raises(EngineBroken, match="the engine hangs"):
            ray.get(in_flight, timeout=60)
    finally:
        engine.send_signal(signal.SIGCONT)


def test_a_worker_whose_engine_died_says_so_and_leaves_nothing_behind(served: Served) -> None:
    engine = engine_of(served.worker)
    mapped = shared_memory_of(engine)
    in_flight = sample_long(served, 2)
    engine.kill()
    for reference in in_flight:
        with pytest.raises(EngineBroken):
            ray.get(reference, timeout=60)
    with pytest.raises(EngineBroken):
        served.call("generate", prompt(20), 10)
    with pytest.raises(EngineBroken):
        served.call("ready")
    with pytest.raises(EngineBroken):
        ray.get(served.send(served.changed_model()), timeout=60)
    served.call("close")
    assert len(list(run_directory(served.config.directory).glob("*.claim"))) == 1, "the neighbour's, and no other"
    assert mapped and not any(path.exists() for path in mapped)


def test_what_a_killed_worker_left_in_shared_memory_is_removed(
    served: Served, workers: list[ray.actor.ActorHandle], rollout_config: RunConfig
) -> None:
    run, neighbour = rollout_config.directory, workers[1]
    engine = engine_of(neighbour)
    mapped = shared_memory_of(engine)
    assert remove_leftovers(run) == [], "a live worker keeps what it maps"
    assert run_directory(run).exists()
    ray.kill(neighbour)
    engine.wait(timeout=30)
    assert any(path.exists() for path in mapped), "a killed engine left nothing: this test shows nothing"
    clear_leftovers(run)
    assert not run_directory(run).exists()
    assert not any(path.exists() for path in mapped)
