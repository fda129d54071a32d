import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl_system.config.load import build_config
from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.records import Sequence, TrainBatch
from rl_system.training import warm_start
from rl_system.training.demonstrations import demonstration_sequences
from rl_system.training.loading import load_tokenizer
from rl_system.training.warm_start import demonstration_probability, ensure_warm_start, fingerprint
from tests.envs import breaking
from tests.models import save_tiny_chat_model
from tests.rl_system.training.conftest import make_batch


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    return save_tiny_chat_model(tmp_path_factory.mktemp("chat_model"))


@pytest.fixture
def config(chat_model, tmp_path, monkeypatch) -> RunConfig:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return make_config(chat_model)


def make_config(model, **overrides) -> RunConfig:
    keys = {
        "model.path": model,
        "environment.domain": "mock",
        "environment.processes": 0,
        "executor.method": "tree",
        "warm_start.steps": 2,
        "warm_start.demonstrations_per_step": 2,
        "warm_start.learning_rate": "1e-2",
        "warm_start.warmup_steps": 0,
    } | overrides
    return build_config({"name": "warm"}, [word for key, value in keys.items() for word in (f"--{key}", str(value))])


def test_it_trains_on_demonstrations_writes_a_model_directory_and_finds_it_the_second_time(config):
    lines = []
    directory = ensure_warm_start(config, lines.append)
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines if "loss" in line]
    assert len(losses) == 2 and losses[1] < losses[0]
    model, loading = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    before = AutoModelForCausalLM.from_pretrained(config.model.path)
    assert not np.allclose(model.model.norm.weight.detach(), before.model.norm.weight.detach())
    assert "<tool_call>" in AutoTokenizer.from_pretrained(directory).chat_template

    again = []
    assert ensure_warm_start(config, again.append) == directory
    assert len(again) == 1 and "in the cache" in again[0]


def test_the_fingerprint_covers_what_the_result_depends_on_and_nothing_else(config, chat_model):
    demonstrations = [[sequence] for sequence in sequences(2)]
    own = fingerprint(config, demonstrations, "template")
    assert fingerprint(config, demonstrations, "template") == own
    assert fingerprint(config, demonstrations[:1], "template") != own
    assert fingerprint(config, demonstrations, "another") != own
    for key, value in {"warm_start.learning_rate": 0.5, "warm_start.seed": 1, "model.dtype": "float64"}.items():
        assert fingerprint(make_config(chat_model, **{key: value}), demonstrations, "template") != own, key
    for key, value in {"seed": 5, "optimizer.learning_rate": 0.5, "warm_start.enabled": "true"}.items():
        assert fingerprint(make_config(chat_model, **{key: value}), demonstrations, "template") == own, key


def sequences(count: int) -> list[Sequence]:
    batch = make_batch(count)
    names = ("token_ids", "trained", "behaviour_logprobs", "versions", "advantages", "weights")
    return [
        Sequence(**{name: getattr(batch, name)[start:stop] for name in names})
        for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    ]


def test_every_demonstration_comes_once_before_any_comes_again(config):
    demonstrations = [[sequence] for sequence in sequences(5)]
    settings = config.warm_start.model_copy(update={"steps": 5, "demonstrations_per_step": 2})
    drawn = [(batch.group_ids.tolist(), fresh) for batch, fresh in warm_start._batches(demonstrations, settings)]
    assert [fresh for _, fresh in drawn] == [True, True, False, False, False]
    order = [index for ids, _ in drawn for index in ids]
    assert sorted(order[:5]) == list(range(5)) == sorted(order[5:])
    assert all(len(set(ids)) == 2 for ids, _ in drawn)


def test_it_stops_early_once_new_demonstrations_are_likely_enough(config, monkeypatch):
    monkeypatch.setattr(warm_start, "demonstration_probability", lambda batch, logprobs: 0.5)
    eager = config.model_copy(update={"warm_start": config.warm_start.model_copy(update={"stop_probability": 0.4})})
    lines = []
    ensure_warm_start(eager, lines.append)
    assert sum("loss" in line for line in lines) == 1


def test_the_probability_of_a_demonstration_is_the_product_over_all_of_its_sequences():
    batch = TrainBatch.of(sequences(3), [4, 4, 9])
    logprobs = np.where(batch.trained, -0.01, 123.0)
    first = np.exp(-0.01 * batch.trained[: batch.offsets[2]].sum())
    second = np.exp(-0.01 * batch.trained[batch.offsets[2] :].sum())
    assert demonstration_probability(batch, logprobs) == pytest.approx((first + second) / 2)


def test_demonstrations_are_whole_dialogues_with_only_the_agents_tokens_trained(config):
    tokenizer = load_tokenizer(config.model)
    for (sequence,) in demonstration_sequences(config, tokenizer)[:3]:
        trained = tokenizer.decode(sequence.token_ids[sequence.trained])
        assert trained.count("<tool_call>") >= 2 and '"done"' in trained
        assert "<tool_response>" not in trained and trained.endswith("<|im_end|>")
        assert "<tool_response>" in tokenizer.decode(sequence.token_ids)


def test_limits_too_tight_for_any_demonstration_are_one_paragraph(chat_model):
    with pytest.raises(UserError, match=r"none of the \d+ tasks of tau2 mock, split.*max_turns.*environment\.max_turns"):
        tight = make_config(chat_model, **{"environment.max_turns": 1})
        demonstration_sequences(tight, load_tokenizer(tight.model))


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ("step raises", r"failed; the first that failed: step raised KeyError: 'missing' \(tests/envs/breaking.py, line \d+"),
        ("demonstration empty", "failed; the first that failed: the demonstration is empty"),
    ],
)
def test_an_environment_whose_demonstrations_fail_is_named_with_the_reason(chat_model, tasks, told):
    keys = {"environment.name": breaking.__name__, "environment.split": tasks, "environment.processes": 0}
    with pytest.raises(UserError, match=rf"none of the 1 tasks of tests\.envs\.breaking, split '{tasks}'.*{told}"):
        config = make_config(chat_model, **keys)
        demonstration_sequences(config, load_tokenizer(config.model))
