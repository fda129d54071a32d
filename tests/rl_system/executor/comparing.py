"""One step of an executor, and how far two are apart."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from rl_system.algorithms import make_objective
from rl_system.algorithms.objective import Objective
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.executor import StepResult, make_executor
from rl_system.records import TrainBatch


def objective(name: str, **options: object) -> Objective:
    return make_objective(AlgorithmConfig(objective=name, **options))


def step(
    model: PreTrainedModel,
    batch: TrainBatch,
    loss: Objective,
    head: nn.Module | None = None,
    temperature: float = 1.0,
    **config: object,
) -> tuple[StepResult, torch.Tensor]:
    """The result and all gradients as one vector, gradients set to zero first."""
    modules = [model] if head is None else [model, head]
    for module in modules:
        module.zero_grad(set_to_none=True)
    executor = make_executor(model, ExecutorConfig(**config), temperature=temperature, head=head)
    for buffer in executor.gradients.values():
        buffer.zero_()
    result = executor.step(batch, loss)
    parts = []
    for module in modules:
        for name, parameter in module.named_parameters():
            gradient = executor.gradients.get(name, parameter.grad)
            parts.append(torch.zeros(parameter.numel()) if gradient is None else gradient.double().flatten())
    return result, torch.cat([part.double() for part in parts])


def relative_error(gradient: torch.Tensor, expected: torch.Tensor) -> float:
    return float((gradient - expected).norm() / expected.norm().clamp_min(1e-12))


def assert_equal_steps(made: tuple[StepResult, torch.Tensor], reference: tuple[StepResult, torch.Tensor], bound: float):
    assert relative_error(made[1], reference[1]) <= bound
    assert made[0].loss == np.float64(made[0].loss)
    assert abs(made[0].loss - reference[0].loss) <= bound * max(1.0, abs(reference[0].loss))
    np.testing.assert_allclose(made[0].logprobs, reference[0].logprobs, rtol=0, atol=bound * 10)
