"""Float64 models stay in float64.

transformers computes norms, routers and the like in float32 whatever the model's dtype. That is right for bfloat16 and
makes a float64 model useless as an oracle: gradients of shared rows are rounded before they are added in one executor
and after in the other.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.overrides import TorchFunctionMode


class _KeepFloat64(TorchFunctionMode):
    """Turns conversions of float64 tensors to float32 into no-ops, and float32 results of theirs into float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            args = tuple(torch.float64 if each is torch.float32 else each for each in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs = kwargs | {"dtype": torch.float64}
        return func(*args, **kwargs)


def full_precision(dtype: torch.dtype) -> AbstractContextManager:
    """While this is entered, a model of `dtype` computes in at least `dtype`."""
    return _KeepFloat64() if dtype == torch.float64 else nullcontext()
