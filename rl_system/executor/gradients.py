"""Where parameter gradients add up.

float32 and float64 parameters use their own `.grad`. For bfloat16 parameters every backward's gradient is added to a
float32 buffer and dropped, so that a sum over many blocks is not rounded to bfloat16 each time.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rl_system.executor.products import add_product


class GradientBuffers:
    """Buffers of a module's trainable parameters. One per module: ask `gradient_buffers`."""

    def __init__(self, module: nn.Module) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._by_parameter: dict[nn.Parameter, Tensor] = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and parameter.dtype.itemsize < torch.float32.itemsize:
                buffer = torch.zeros_like(parameter, dtype=torch.float32)
                self.by_name[name] = self._by_parameter[parameter] = buffer
                parameter.register_post_accumulate_grad_hook(self._collect)

    def _collect(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not None:  # also called where a backward had no gradient for the parameter
            self._by_parameter[parameter] += parameter.grad
            parameter.grad = None

    def use(self, buffers: Mapping[str, Tensor]) -> None:
        """Add up in `buffers` from now on, float32 and by parameter name, in place of those allocated here."""
        owners = dict(zip(self.by_name, self._by_parameter, strict=True))
        for name, parameter in owners.items():
            self.by_name[name] = self._by_parameter[parameter] = buffers[name]

    def of(self, parameter: nn.Parameter) -> Tensor:
        """The buffer that gradients of `parameter` may be added to directly."""
        buffer = self._by_parameter.get(parameter)
        if buffer is not None:
            return buffer
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad

    def add_product(self, parameter: nn.Parameter, grad: Tensor, inputs: Tensor) -> None:
        """Add gradᵀ · inputs, the gradient of a matrix applied to rows: grad [rows, out], inputs [rows, in]."""
        if not parameter.requires_grad:
            return
        add_product(self.of(parameter), grad, inputs)


_known: weakref.WeakKeyDictionary[nn.Module, GradientBuffers] = weakref.WeakKeyDictionary()


def gradient_buffers(module: nn.Module) -> GradientBuffers:
    """The buffers of `module`, the same ones for every executor that runs it."""
    if module not in _known:
        _known[module] = GradientBuffers(module)
    return _known[module]
