import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rl_system.algorithms.statistics import Statistics
from rl_system.config.executor import ExecutorConfig
from rl_system.executor import make_executor
from rl_system.tree import build_tree
from tests.rl_system.executor.comparing import assert_equal_steps, objective, relative_error, step
from tests.rl_system.executor.models import FAMILIES, small_model
from tests.rl_system.trees import EDGE, batch_of, multi_turn, nested, random_batches

BOUND = 1e-9
OBJECTIVES = ["ppo_clip", "decoupled_ppo", "cispo", "gspo", "reinforce", "sft"]


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_the_loss_and_gradients_of_plain_training(model, name):
    batch, loss = multi_turn(3, 4), objective(name, entropy_coefficient=0.01)
    reference = step(model, batch, loss, method="dense")
    for block_tokens, retain_tokens in ((16, 0), (16, 40), (64, 0), (64, 10_000), (256, 0), (0, 0)):
        made = step(model, batch, loss, method="tree", block_tokens=block_tokens, retain_tokens=retain_tokens)
        assert_equal_steps(made, reference, BOUND)
        assert made[0].report.method == "tree"


@pytest.mark.parametrize("block_tokens", [1, 3, 16, 0])
def test_duplicates_are_counted_once_in_the_tree_and_twice_in_the_loss(model, block_tokens):
    batch = batch_of(EDGE)
    made = step(model, batch, objective("ppo_clip"), method="tree", block_tokens=block_tokens)
    assert_equal_steps(made, step(model, batch, objective("ppo_clip"), method="dense"), BOUND)
    assert made[0].report.unique_tokens == len({tuple(each[: n + 1]) for each in EDGE for n in range(len(each))})


@settings(max_examples=200, deadline=None)
@given(
    random_batches(),
    st.sampled_from(["ppo_clip", "gspo"]),
    st.integers(0, 12),
    st.sampled_from([0, 5, 1000]),
)
def test_random_trees_train_like_their_sequences(batch, name, block_tokens, retain_tokens):
    model = random_tree_model()
    loss = objective(name)
    made = step(model, batch, loss, method="tree", block_tokens=block_tokens, retain_tokens=retain_tokens)
    if not batch.trained.any():
        assert made[0].loss == 0 and not made[1].any()
        return
    assert_equal_steps(made, step(model, batch, loss, method="dense"), BOUND)


_models = []


def random_tree_model():
    """One model for all examples: hypothesis takes no fixtures of a module's scope."""
    if not _models:
        _models.append(small_model())
    return _models[0]


@pytest.mark.parametrize("method", ["dense_ckpt", "leaves", "packed", "auto"])
@pytest.mark.parametrize("name", ["ppo_clip", "gspo"])
def test_every_other_way_of_running_agrees_with_plain_training(model, method, name):
    batch, loss = multi_turn(2, 3), objective(name, entropy_coefficient=0.01)
    assert_equal_steps(step(model, batch, loss, method=method), step(model, batch, loss, method="dense"), BOUND)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama"])
def test_every_supported_family_trains_alike(family):
    model, batch, loss = small_model(family), multi_turn(2, 3), objective("ppo_clip")
    reference = step(model, batch, loss, method="dense")
    for block_tokens in (16, 0):
        assert_equal_steps(step(model, batch, loss, method="tree", block_tokens=block_tokens), reference, BOUND)


def test_forks_nested_hundreds_deep_agree_with_a_packed_reference(model):
    batch, loss = nested(300), objective("ppo_clip")
    reference = step(model, batch, loss, method="packed")
    for block_tokens in (64, 0):
        assert_equal_steps(step(model, batch, loss, method="tree", block_tokens=block_tokens), reference, BOUND)


def test_temperature_divides_the_logits(model):
    batch, loss = multi_turn(2, 3), objective("ppo_clip", entropy_coefficient=0.01)
    reference = step(model, batch, loss, temperature=0.7, method="dense")
    assert_equal_steps(step(model, batch, loss, temperature=0.7, method="tree", block_tokens=32), reference, BOUND)
    assert relative_error(step(model, batch, loss, method="tree")[1], reference[1]) > 1e-3


def test_logprobs_without_graph_equal_those_of_a_step_and_leave_no_gradient(model):
    batch = multi_turn(2, 3)
    expected = step(model, batch, objective("sft"), method="dense")[0].logprobs
    model.zero_grad(set_to_none=True)
    for block_tokens in (16, 0):
        executor = make_executor(model, ExecutorConfig(method="tree", block_tokens=block_tokens))
        np.testing.assert_allclose(executor.logprobs(batch), expected, rtol=0, atol=1e-12)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_of_several_steps_add_up(model):
    batch, loss = multi_turn(2, 3), objective("reinforce")
    _, once = step(model, batch, loss, method="tree", block_tokens=32)
    make_executor(model, ExecutorConfig(method="tree", block_tokens=16)).step(batch, loss)
    twice = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert relative_error(twice, 2 * once) <= BOUND


def test_live_tokens_stay_within_the_budget_and_every_row_is_reported(model):
    batch = multi_turn(4, 6)
    unique = len(build_tree(batch))
    for block_tokens, retain_tokens in ((16, 0), (32, 20), (32, 500)):
        report = step(
            model, batch, objective("sft"), method="tree", block_tokens=block_tokens, retain_tokens=retain_tokens
        )[0].report
        assert report.peak_live_tokens <= block_tokens + retain_tokens
        assert report.unique_tokens == unique and report.sequence_tokens == batch.sequence_tokens
        assert report.blocks >= unique / block_tokens * 0.8


def test_live_tokens_do_not_grow_with_the_number_of_rollouts(model):
    reports = [
        step(model, multi_turn(rollouts, 4), objective("sft"), method="tree", block_tokens=64)[0].report
        for rollouts in (3, 6)
    ]
    assert reports[1].peak_live_tokens <= 64 and reports[0].peak_live_tokens <= 64


def test_a_part_without_any_sequence_runs_and_adds_nothing(model):
    empty = multi_turn(2, 2).take(np.array([], np.int64))
    for method in ("tree", "dense", "auto", "leaves"):
        result, gradient = step(model, empty, objective("ppo_clip"), method=method)
        assert result.loss == 0 and not gradient.any() and result.report.blocks == 0


class ValueLoss:
    """Half the squared error of values against returns."""

    coupled = False
    needs_entropy = False

    def __call__(self, outputs, entropies, pairs):
        statistics = Statistics()
        statistics.add("pairs", len(outputs), 1)
        return (pairs.weights * (outputs - pairs.returns) ** 2).sum() / 2, statistics


def test_a_value_head_trains_through_the_same_path(model):
    torch.manual_seed(1)
    head = nn.Linear(32, 1).double()
    batch = multi_turn(2, 3)
    batch.returns = np.random.default_rng(0).standard_normal(batch.sequence_tokens).astype(np.float32)
    reference = step(model, batch, ValueLoss(), head=head, method="dense")
    assert reference[1][-1] != 0
    assert_equal_steps(step(model, batch, ValueLoss(), head=head, method="tree", block_tokens=32), reference, BOUND)


def test_float32_is_within_rounding_of_plain_training():
    model, batch, loss = small_model(dtype=torch.float32), multi_turn(3, 4), objective("ppo_clip")
    reference = step(model, batch, loss, method="dense")
    for block_tokens in (32, 0):
        made = step(model, batch, loss, method="tree", block_tokens=block_tokens)
        assert relative_error(made[1], reference[1]) <= 2e-6


@pytest.mark.parametrize("block_tokens", [32, 0])
def test_bfloat16_is_no_further_from_float32_than_plain_bfloat16_training(block_tokens):
    """Rounding is luck in a single batch, a few per cent either way; so over several, and nowhere by much."""
    wide, model = small_model(dtype=torch.bfloat16).to(torch.float32), small_model(dtype=torch.bfloat16)
    ratios = []
    for batch in (multi_turn(6, 4), multi_turn(4, 4), multi_turn(8, 3), multi_turn(10, 3)):
        for loss in map(objective, ("reinforce", "ppo_clip", "sft")):
            exact = step(wide, batch, loss, method="dense")[1]
            dense = relative_error(step(model, batch, loss, method="dense")[1], exact)
            ratios.append(relative_error(step(model, batch, loss, method="tree", block_tokens=block_tokens)[1], exact) / dense)
    assert np.mean(ratios) <= 1
    assert max(ratios) <= 1.05


def test_bfloat16_gradients_add_up_in_float32_buffers_outside_the_parameters():
    model, batch = small_model(dtype=torch.bfloat16), multi_turn(2, 3)
    executor = make_executor(model, ExecutorConfig(method="tree", block_tokens=32))
    executor.step(batch, objective("sft"))
    assert set(executor.gradients) == {name for name, _ in model.named_parameters()}
    assert all(buffer.dtype == torch.float32 and buffer.any() for buffer in executor.gradients.values())
    assert all(parameter.grad is None for parameter in model.parameters())
