"""A model dealt out to two ranks, each a real process, against the same model on one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.errors import UserError
from rl_system.executor import make_executor
from rl_system.training.checkpoint import load_checkpoint, save_checkpoint
from rl_system.training.checkpoint_directory import open_checkpoint
from rl_system.training.learner import Learner
from rl_system.training.ranks import Ranks
from rl_system.training.tensor_parallel import (
    ColumnLinear,
    RowLinear,
    Sharding,
    TensorGroup,
    agree_on_replicated,
    check_divisible,
    deal_out,
    parallelize,
)
from rl_system.training.weights import as_numpy, saved_tensors
from tests.rl_system.executor.comparing import objective
from tests.rl_system.executor.models import FAMILIES, small_model
from tests.rl_system.training.conftest import make_batch, make_tokenizer
from tests.rl_system.training.processes import run_ranks

TREE = {"method": "tree", "block_tokens": 16}
CASES = [
    *((family, TREE, "decoupled_ppo") for family in FAMILIES if family != "qwen3_moe"),
    ("qwen3", TREE | {"retain_tokens": 16}, "decoupled_ppo"),
    ("qwen3", {"method": "tree", "block_tokens": 0}, "decoupled_ppo"),
    ("llama_tied_with_biases", {"method": "dense"}, "decoupled_ppo"),
    ("qwen3", {"method": "dense_ckpt"}, "decoupled_ppo"),
    ("qwen3", TREE, "gspo"),
]


@dataclass
class Step:
    """gradients: whole ones, by parameter name. logprobs: of the batch."""

    loss: float
    gradients: dict[str, np.ndarray]
    logprobs: np.ndarray


def steps(ranks: Ranks) -> list[Step]:
    """One step of each case."""
    return [step(ranks, *case) for case in CASES]


def step(ranks: Ranks, family: str, config: dict, name: str) -> Step:
    model = parallelize(small_model(family), TensorGroup(ranks.rank, ranks.size))
    batch = make_batch(7, prefix=20, tail=12)
    result = make_executor(model, ExecutorConfig(**config), temperature=0.8).step(batch, objective(name))
    sharding = Sharding.of(model)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    agree_on_replicated(gradients, sharding)
    whole = {name: sharding.whole(name, each).numpy() for name, each in gradients.items()}
    return Step(result.loss, whole, result.logprobs)


@pytest.fixture(scope="module")
def on_two_ranks() -> list[list[Step]]:
    return run_ranks(2, steps)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{family}-{name}" for family, _, name in CASES])
def test_two_ranks_have_the_loss_logprobs_and_gradients_of_one(case, on_two_ranks):
    alone = step(Ranks(), *CASES[case])
    for found in (rank[case] for rank in on_two_ranks):
        assert found.loss == pytest.approx(alone.loss, rel=1e-9)
        np.testing.assert_allclose(found.logprobs, alone.logprobs, rtol=0, atol=1e-9)
        assert found.gradients.keys() == alone.gradients.keys()
        for name, expected in alone.gradients.items():
            scale = np.linalg.norm(expected)
            assert scale > 0 or name.endswith("k_proj.bias"), f"{name} had no gradient: this test shows nothing"
            assert np.linalg.norm(found.gradients[name] - expected) <= 1e-9 * max(scale, 1e-3), name


# -- training --------------------------------------------------------------------------------------------------------

UPDATES = 4
SHARING = 2


@dataclass
class Run:
    """parameters: whole ones after the last update, by name; None but on the first rank of a copy."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, np.ndarray]
    replicated: bytes


def make_learner(world: Ranks, size: int, dtype: torch.dtype) -> Learner:
    ranks, group = deal_out(world, size)
    return Learner(
        parallelize(small_model("qwen3", dtype), group),
        algorithm=AlgorithmConfig(objective="decoupled_ppo"),
        executor=ExecutorConfig(**TREE),
        optimizer=OptimizerConfig(learning_rate=1e-2, max_grad_norm=0.1, weight_decay=0.1, warmup_steps=2),
        updates=UPDATES,
        ranks=ranks,
        world=world,
    )


def train(learner: Learner, updates: range) -> Run:
    metrics = []
    for update in updates:
        batch = make_batch(6, seed=update)
        # Unequal parts; where there are two copies of the model, the second one has nothing to do once.
        cut = len(batch) if learner.ranks.size == 1 else (4, 6, 1, 3)[update % 4]
        part = range(cut) if learner.ranks.rank == 0 else range(cut, len(batch))
        metrics.append(learner.update(batch.take(np.array(part, np.int64))))
    slots, values = learner.flat.slots, learner.flat.values
    return Run(
        losses=[each["train/loss"] for each in metrics],
        norms=[each["train/grad_norm"] for each in metrics],
        parameters={name: as_numpy(tensor) for name, tensor in saved_tensors(learner.model).items()},
        replicated=b"".join(as_numpy(values[slot.start : slot.stop]).tobytes() for slot in slots if slot.replicated),
    )


def train_dealt_out(world: Ranks, size: int, directory: Path, dtype: torch.dtype) -> tuple[Run, Run]:
    """All updates in one go; and the last two again after a checkpoint, in a learner of its own."""
    learner = make_learner(world, size, dtype)
    train(learner, range(2))
    settings = {"run": "tp", "step": 2, "started_from": "", "state": {}, "blobs": {}, "keep": 1}
    path = save_checkpoint(learner, make_tokenizer(), directory / str(world.size), **settings)
    whole = train(learner, range(2, UPDATES))
    again = make_learner(world, size, dtype)
    load_checkpoint(again, open_checkpoint(path))
    return whole, train(again, range(2, UPDATES))


@pytest.mark.parametrize("world", [2, 4])
def test_sharing_ranks_train_as_one_does_and_go_on_after_a_checkpoint_bit_for_bit(world, tmp_path):
    alone, _ = train_dealt_out(Ranks(), 1, tmp_path, torch.float64)
    results = run_ranks(world, train_dealt_out, SHARING, tmp_path, torch.float64)
    for found, resumed in results:
        np.testing.assert_allclose(found.losses, alone.losses, rtol=1e-9)
        np.testing.assert_allclose(found.norms, alone.norms, rtol=1e-9)
        assert resumed.losses == found.losses and resumed.norms == found.norms
        assert resumed.replicated == found.replicated == results[0][0].replicated
    for found, resumed in results[::SHARING]:
        assert found.parameters.keys() == alone.parameters.keys()
        for name, expected in alone.parameters.items():
            np.testing.assert_allclose(found.parameters[name], expected, rtol=1e-7, atol=1e-9, err_msg=name)
            assert np.array_equal(resumed.parameters[name], found.parameters[name]), name
    assert all(found.parameters == {} for rank, (found, _) in enumerate(results) if rank % SHARING)

    saved = AutoModelForCausalLM.from_pretrained(tmp_path / str(world) / "step_2" / "model")
    assert {name: tuple(p.shape) for name, p in saved.named_parameters()} == {
        name: value.shape for name, value in alone.parameters.items()
    }
    with pytest.raises(UserError, match="allocation.tensor_parallel 2, but 1 is configured"):
        load_checkpoint(make_learner(Ranks(), 1, torch.float64), open_checkpoint(tmp_path / str(world) / "step_2"))


def test_bfloat16_models_that_are_dealt_out_keep_their_replicated_parameters_alike(tmp_path):
    (first, resumed), (second, _) = run_ranks(2, train_dealt_out, SHARING, tmp_path, torch.bfloat16)
    assert first.replicated == second.replicated == resumed.replicated
    assert all(np.isfinite(first.losses))


def replicated_after_a_step(ranks: Ranks) -> dict[str, bytes]:
    """Gradients of replicated parameters, with a rounding of each rank's own put in."""
    model = parallelize(small_model("qwen3"), TensorGroup(ranks.rank, ranks.size))
    torch.manual_seed(ranks.rank)
    gradients = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
    sharding = Sharding.of(model)
    agree_on_replicated(gradients, sharding)
    return {name: each.numpy().tobytes() for name, each in gradients.items() if name not in sharding.dims}


def test_replicated_gradients_are_the_same_bits_on_all_ranks_whatever_they_were():
    first, second = run_ranks(2, replicated_after_a_step)
    assert first == second and any("q_norm" in name for name in first)


def shares(ranks: Ranks) -> tuple[dict[str, tuple], int]:
    model = parallelize(small_model("llama"), TensorGroup(ranks.rank, ranks.size))
    whole = dict(small_model("llama").named_parameters())
    sharding = Sharding.of(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(sharding.whole(name, parameter.detach()), whole[name]), name
        assert torch.equal(sharding.share(name, whole[name]), parameter), name
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(ColumnLinear) == 2 * 5 and kinds.count(RowLinear) == 2 * 2
    return {name: tuple(each.shape) for name, each in model.named_parameters()}, len(sharding.dims)


def test_heads_and_units_are_dealt_out_and_everything_else_is_on_every_rank():
    (shapes, dealt_out), second = run_ranks(2, shares)
    assert second == (shapes, dealt_out) and dealt_out == 2 * 7
    layer = "model.layers.1."
    assert shapes[f"{layer}self_attn.q_proj.weight"] == (16, 32)
    assert shapes[f"{layer}self_attn.k_proj.weight"] == (8, 32)
    assert shapes[f"{layer}self_attn.o_proj.weight"] == (32, 16)
    assert shapes[f"{layer}mlp.down_proj.weight"] == (32, 24)
    assert shapes["lm_head.weight"] == shapes["model.embed_tokens.weight"]


@pytest.mark.parametrize(
    ("family", "size", "message"),
    [
        ("llama", 4, "num_key_value_heads 2"),
        ("llama", 3, "num_attention_heads 4"),
        ("qwen3_moe", 2, "qwen3_moe"),
    ],
)
def test_a_model_that_cannot_be_dealt_out_is_refused(family, size, message):
    with pytest.raises(UserError, match=message) as error:
        check_divisible(FAMILIES[family](), size)
    assert f"allocation.tensor_parallel is {size}" in str(error.value)


def test_one_rank_alone_keeps_the_model_as_it_is():
    model = small_model("llama")
    assert parallelize(model, TensorGroup()) is model
    assert not any(isinstance(module, (ColumnLinear, RowLinear)) for module in model.modules())
    assert Sharding.of(model).dims == {}
