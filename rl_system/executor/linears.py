"""Linear layers of a transformers model with this processor's fastest products.

For the ways to train that run the modules as they are: comparing them with the tree then compares what is computed, not
which library does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from rl_system.executor.gradients import GradientBuffers
from rl_system.executor.products import product, uses_onednn


def plain_linear(module: nn.Module | None) -> bool:
    """Whether this is an ordinary linear layer, whole on this device."""
    return type(module) is nn.Linear and type(module.weight) is nn.Parameter


@contextmanager
def fast_linears(model: nn.Module, gradients: GradientBuffers) -> Iterator[None]:
    """While this is entered, linear layers of `model` use `product` where that is not what torch does anyway, and add the
    gradients of their weights to `gradients` themselves."""
    linears = [each for each in model.modules() if plain_linear(each) and uses_onednn(each.weight)]
    for each in linears:
        each.forward = partial(_linear, each, gradients)
    try:
        yield
    finally:
        for each in linears:
            del each.forward


def _linear(module: nn.Linear, gradients: GradientBuffers, x: Tensor) -> Tensor:
    out = _Linear.apply(x, module.weight, gradients)
    return out if module.bias is None else out + module.bias


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: nn.Parameter, gradients: GradientBuffers) -> Tensor:
        ctx.weight, ctx.gradients = weight, gradients
        ctx.save_for_backward(x)
        return product(x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, grad: Tensor):
        (x,) = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        ctx.gradients.add_product(ctx.weight, rows, x.flatten(0, -2))
        return product(rows, ctx.weight.T).view_as(x), None, None
