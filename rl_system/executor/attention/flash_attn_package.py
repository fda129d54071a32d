"""Whether the flash-attn package on this machine can be used, and if not, why.

It is compiled for one torch, one CUDA and some architectures, other distributions put modules under its name, and its
functions changed from release to release. So it is trusted with nothing: a module that does not import, that lacks our two
functions or gives them other arguments, and one whose results are not those of the definition are all named as what they are,
and torch's own build of the same algorithm serves.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
from typing import TYPE_CHECKING, Any

import torch

from rl_system.executor.attention.kernels import ReferenceKernel
from rl_system.origin import said

if TYPE_CHECKING:
    from rl_system.executor.attention.kernels import Kernel

PACKAGE = "flash_attn"
FORWARD, BACKWARD = "_flash_attn_varlen_forward", "_flash_attn_varlen_backward"
POSITIONAL = {FORWARD: 3, BACKWARD: 9}
"""Arguments that are given by position: q, k, v; grad_out, q, k, v, out, lse and the places of three gradients."""
OFFSETS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
BY_NAME = {
    FORWARD: (*OFFSETS, "dropout_p", "softmax_scale", "causal"),
    BACKWARD: (
        *OFFSETS, "dropout_p", "softmax_scale", "causal",
        "window_size_left", "window_size_right", "softcap", "alibi_slopes", "deterministic",
    ),
}  # fmt: skip
"""Arguments that are given by name."""
TRIAL_ROWS, TRIAL_HEADS, TRIAL_HEAD_SIZE = (5, 3), 2, 64
TRIAL_TOLERANCE = 0.1
"""Largest difference in the trial, whose values are of order one and rounded to bfloat16."""


class Unusable(Exception):
    """flash-attn is not there or cannot be used. The message says why, as the end of a sentence that begins with its name."""

    def __init__(self, why: str, installed: bool) -> None:
        super().__init__(why)
        self.installed = installed


@functools.cache
def distribution() -> str:
    """What is installed under the package's name, such as `flash-attn 2.8.3`."""
    owners = importlib.metadata.packages_distributions().get(PACKAGE, [])
    return ", ".join(f"{owner} {importlib.metadata.version(owner)}" for owner in sorted(set(owners))) or PACKAGE


def find_interface() -> Any:
    """The module `flash_attn.flash_attn_interface` with the functions that we call. Raises Unusable."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise Unusable("is not installed", installed=False)
    try:
        interface = importlib.import_module(f"{PACKAGE}.flash_attn_interface")
    except Exception as error:  # what foreign code compiled for something else raises is not known
        raise Unusable(f"({distribution()}) does not import: {said(error)}", installed=True) from error
    check_interface(interface)
    return interface


def check_interface(interface: Any) -> None:
    """Raise Unusable unless `interface` has our two functions and they take what we give them."""
    for name, named in BY_NAME.items():
        function = getattr(interface, name, None)
        if function is None:
            raise Unusable(f"({distribution()}) has no {name}; release 2.8 has", installed=True)
        try:
            _signature(function).bind(*[None] * POSITIONAL[name], **dict.fromkeys(named))
        except TypeError as error:
            raise Unusable(f"({distribution()}) has another {name} than release 2.8: {error}", installed=True) from None


def check_results(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> None:
    """Raise Unusable unless `kernel` computes on `device` what the definition says, forward and backward."""
    random = torch.Generator().manual_seed(0)

    def draw(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(1, heads, rows, TRIAL_HEAD_SIZE, generator=random).to(device, dtype)

    queries = 2 * TRIAL_HEADS  # grouped
    inputs = [(draw(n, queries), draw(n, TRIAL_HEADS), draw(n, TRIAL_HEADS)) for n in TRIAL_ROWS]
    grads, scale = [draw(n, queries) for n in TRIAL_ROWS], TRIAL_HEAD_SIZE**-0.5
    definition, exact = ReferenceKernel(), [tuple(x.float() for x in call) for call in inputs]
    outcomes = list(definition.forward(exact, True, scale))
    calls = [(grad, *call, out.to(dtype), lse) for grad, call, (out, lse) in zip(grads, inputs, outcomes, strict=True)]
    exact = [tuple(x.float() for x in call) for call in calls]
    right = [*outcomes, *definition.backward(exact, True, scale)]
    try:
        made = [*kernel.forward(inputs, True, scale), *kernel.backward(calls, True, scale)]
        differences = [
            (a.float() - b).abs().max().item()
            for ours, theirs in zip(made, right, strict=True)
            for a, b in zip(ours, theirs, strict=True)
        ]
    except Exception as error:  # of a kernel that was not compiled for this device, for one
        raise Unusable(f"({distribution()}) fails on {device}: {said(error)}", installed=True) from error
    if not max(differences) <= TRIAL_TOLERANCE:
        raise Unusable(f"({distribution()}) is wrong by {max(differences):g} on {device}", installed=True)


def _signature(function: Any) -> inspect.Signature:
    """Of what a `torch.library.custom_op` was made from too, which only takes anything itself."""
    return inspect.signature(getattr(function, "_init_fn", function))
