"""A language model that gives a number in place of a distribution: what is expected to be earned from a token on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel


class ValueHead(nn.Module):
    """One linear output, computed in float32 at least: a bfloat16 value near 1 would move in steps of 1/128.

    Starts at zero, so that the first advantages are those without a critic.
    """

    def __init__(self, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.zeros(1, dtype=dtype, device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden size] to values [rows, 1], float32 or float64."""
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        return functional.linear(hidden.to(dtype), self.weight.to(dtype), self.bias.to(dtype))


class ValueModel(nn.Module):
    """`backbone`, owned from now on, and a value head. Parameters of the backbone's own head that the rest of it does
    not share are never trained."""

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone
        logits = backbone.get_output_embeddings().weight
        if logits is not backbone.get_input_embeddings().weight:
            logits.requires_grad_(False)
        self.head = ValueHead(backbone.config.hidden_size, backbone.dtype, backbone.device)
