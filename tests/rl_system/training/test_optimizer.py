import math

import pytest
import torch

from rl_system.config.optimizer import OptimizerConfig
from rl_system.training import flat_parameters
from rl_system.training.finite import is_finite
from rl_system.training.flat_parameters import FlatParameters
from rl_system.training.optimizer import ShardedAdamW
from rl_system.training.ranks import Ranks
from tests.rl_system.training.conftest import make_model


def fill_gradients(model: torch.nn.Module, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        gradient = scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.copy_(gradient)


def oracle_optimizer(model: torch.nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """torch's AdamW parameter by parameter."""
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    groups = [{"params": others, "weight_decay": config.weight_decay}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1.0, betas=(config.beta1, config.beta2), eps=config.eps, foreach=False)


@pytest.mark.parametrize("bucket_elements", [256, 1 << 25])
@pytest.mark.parametrize("max_grad_norm", [0.5, 1e9])
def test_updates_equal_adamw_parameter_by_parameter(bucket_elements, max_grad_norm, monkeypatch):
    monkeypatch.setattr(flat_parameters, "BUCKET_ELEMENTS", bucket_elements)
    config = OptimizerConfig(weight_decay=0.1, max_grad_norm=max_grad_norm)
    model, oracle = make_model(), make_model()
    optimizer = ShardedAdamW(FlatParameters(model), config, Ranks())
    reference = oracle_optimizer(oracle, config)
    for step in range(5):
        fill_gradients(model, step)
        fill_gradients(oracle, step)
        gradients = [parameter.grad for parameter in oracle.parameters()]
        norm = torch.nn.utils.get_total_norm(gradients).item()
        for gradient in gradients:
            gradient *= min(1.0, max_grad_norm / norm)  # clip_grad_norm_ adds 1e-6 to the norm
        reference.param_groups[0]["lr"] = reference.param_groups[1]["lr"] = 0.01 * (step + 1)
        reference.step()
        outcome = optimizer.step(1.0, 0.01 * (step + 1))
        assert outcome.gradient_norm == pytest.approx(norm, rel=1e-12)
    for (name, parameter), expected in zip(model.named_parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_neither_parameters_nor_states(bad, where):
    model = make_model()
    flat = FlatParameters(model)
    optimizer = ShardedAdamW(flat, OptimizerConfig(), Ranks())
    fill_gradients(model, 0)
    optimizer.step(1.0, 0.01)
    before = [flat.values.clone(), optimizer.first_moment.clone(), optimizer.second_moment.clone()]
    fill_gradients(model, 1)
    if where == "gradient":
        flat.gradient_of["model.norm.weight"][3] = bad
    outcome = optimizer.step(bad if where == "loss" else 1.0, 0.01)
    assert not outcome.applied
    after = [flat.values, optimizer.first_moment, optimizer.second_moment]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert optimizer.updates == 1
    assert not flat.gradients.any()


def test_a_gradient_whose_square_overflows_float32_is_clipped_and_applied():
    model = make_model(torch.float32)
    optimizer = ShardedAdamW(FlatParameters(model), OptimizerConfig(), Ranks())
    fill_gradients(model, 0, scale=1e25)
    outcome = optimizer.step(1.0, 0.01)
    assert outcome.applied and math.isfinite(outcome.gradient_norm)


def test_elements_between_parameters_stay_zero():
    model = make_model()
    flat = FlatParameters(model, 3)
    optimizer = ShardedAdamW(flat, OptimizerConfig(weight_decay=0.1), Ranks())
    fill_gradients(model, 0)
    optimizer.step(1.0, 0.1)
    inside = torch.zeros(flat.length, dtype=torch.bool)
    for slot in flat.slots:
        inside[slot.start : slot.stop] = True
    assert not flat.values[~inside].any()


def test_bfloat16_models_collect_updates_too_small_for_bfloat16_in_float32_masters():
    model = make_model(torch.bfloat16)
    flat = FlatParameters(model)
    optimizer = ShardedAdamW(flat, OptimizerConfig(), Ranks())
    slot = next(slot for slot in flat.slots if slot.name == "model.norm.weight")
    weight = model.model.norm.weight
    assert (weight == 1).all()
    for _ in range(20):
        flat.gradient_of["model.norm.weight"].fill_(1.0)
        optimizer.step(1.0, 1e-3)  # Adam moves by the learning rate, a fifth of bfloat16's step below 1
    assert optimizer.masters[slot.start] == pytest.approx(0.98, abs=1e-4)
    assert torch.equal(weight, torch.full_like(weight, 0.98))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_where_there_is_no_gradient_there_is_no_step(weight_decay):
    """Although Adam has momentum, and weights would decay."""
    model = make_model()
    flat = FlatParameters(model)
    optimizer = ShardedAdamW(flat, OptimizerConfig(weight_decay=weight_decay), Ranks())
    fill_gradients(model, 0)
    assert optimizer.step(1.0, 0.01).applied
    before = [flat.values.clone(), optimizer.first_moment.clone(), optimizer.second_moment.clone()]
    outcome = optimizer.step(0.5, 0.01)
    assert outcome.empty and not outcome.applied and not outcome.bad
    after = [flat.values, optimizer.first_moment, optimizer.second_moment]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert optimizer.updates == 1
    fill_gradients(model, 1)
    assert optimizer.step(1.0, 0.01).applied and optimizer.updates == 2


def test_a_step_tells_when_it_left_parameters_that_are_not_finite():
    model = make_model(torch.float32)
    optimizer = ShardedAdamW(FlatParameters(model), OptimizerConfig(), Ranks())
    fill_gradients(model, 0)
    assert optimizer.step(1.0, 0.01).whole
    fill_gradients(model, 1)
    assert not optimizer.step(1.0, 1e39).whole


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_none_is_found(bad):
    values = torch.zeros(1000, dtype=torch.bfloat16)
    assert is_finite(values) and is_finite(values[:0])
    values[777] = bad
    assert not is_finite(values)
