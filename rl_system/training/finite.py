"""Whether numbers are numbers."""

from __future__ import annotations

import math

import torch


def is_finite(values: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite. Allocates nothing of the size of `values`."""
    return values.numel() == 0 or math.isfinite(torch.linalg.vector_norm(values.detach().flatten(), math.inf).item())
