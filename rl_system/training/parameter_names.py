"""The names that parameters have outside the trainer: in files, in engines, and on the way to them.

They are those under which `save_pretrained` writes a model. transformers keeps the experts of a layer in two tensors of
all experts, while files and engines know every expert by itself; here one is made a set of views of the other, so that
what is written into a view is in the model.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

GATE_AND_UP = ".experts.gate_up_proj"
"""[experts, 2 · intermediate size, hidden size]: the rows of the gate, then those of the other projection."""
DOWN = ".experts.down_proj"
"""[experts, hidden size, intermediate size]."""


def under_saved_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole `tensors` of a model by the names of its modules, as views by the names that they have in files."""
    saved: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(GATE_AND_UP):
            saved |= _experts(name.removesuffix("gate_up_proj"), tensor, ("gate_proj", "up_proj"))
        elif name.endswith(DOWN):
            saved |= _experts(name.removesuffix("down_proj"), tensor, ("down_proj",))
        else:
            saved[name] = tensor
    return saved


def _experts(prefix: str, tensor: Tensor, projections: tuple[str, ...]) -> dict[str, Tensor]:
    """The matrices of all experts, by expert; `projections` share the rows of each."""
    return {
        f"{prefix}{index}.{projection}.weight": matrix
        for index, expert in enumerate(tensor)
        for projection, matrix in zip(projections, expert.chunk(len(projections)), strict=True)
    }
