"""Attention of a block as merged plain calls, and its place in transformers' attention registry.

The forward runs the calls of an `AttentionPlan` level by level and merges them by their log-sum-exp in float32:
`lse = logaddexp(a, b)`, `out = out_a·exp(a − lse) + out_b·exp(b − lse)`. The backward hands every call the merged out and
lse. Gradients of the path's keys and values go to the `PathStack`; those that blocks below left for this block's trunk
are added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from rl_system.executor.attention.calls import AttentionPlan, Call
from rl_system.executor.attention.kernels import Kernel
from rl_system.executor.attention.stack import PathStack

ATTENTION_NAME = "prefix_tree"


@dataclass(slots=True)
class BlockPass:
    """One pass of the model over a block: what its attention layers need to know.

    write_at: rows of the path above the trunk, or None where no block hangs from this pass. trunk: its rows.
    wanted: int64, the rows whose last hidden state is asked for, ascending; last_plan: what the last layer's attention
    computes for them. received: gradients of the trunk's keys and values from the blocks below, [layers, 2, trunk,
    kv heads, head size].
    """

    plan: AttentionPlan
    last_plan: AttentionPlan
    stack: PathStack
    kernel: Kernel
    wanted: Tensor
    write_at: int | None = None
    trunk: int = 0
    received: Tensor | None = None

    def plan_of(self, layer: int) -> AttentionPlan:
        return self.last_plan if layer == self.stack.layers - 1 else self.plan


def prefix_tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    block_pass: BlockPass,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, heads, rows, head size] to [1, rows, heads, head size]."""
    if block_pass.write_at is not None:
        trunk = slice(0, block_pass.trunk)
        block_pass.stack.write(module.layer_idx, block_pass.write_at, key[:, :, trunk], value[:, :, trunk])
    return _MergedAttention.apply(query, key, value, block_pass, module.layer_idx, scaling), None


AttentionInterface.register(ATTENTION_NAME, prefix_tree_attention)


class _MergedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, block_pass: BlockPass, layer: int, scale: float) -> Tensor:
        out, lse = _forward(q, k, v, block_pass, layer, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.block_pass, ctx.layer, ctx.scale = block_pass, layer, scale
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx, grad_out: Tensor):
        q, k, v, out, lse = ctx.saved_tensors
        grads = _backward(grad_out.transpose(1, 2), q, k, v, out, lse, ctx.block_pass, ctx.layer, ctx.scale)
        return *grads, None, None, None


def _keys(call: Call, k: Tensor, v: Tensor, block_pass: BlockPass, layer: int) -> tuple[Tensor, Tensor]:
    if call.path:
        return block_pass.stack.read(layer, call.k0, call.k1)
    return k[:, :, call.k0 : call.k1], v[:, :, call.k0 : call.k1]


def _forward(q: Tensor, k: Tensor, v: Tensor, block_pass: BlockPass, layer: int, scale: float) -> tuple[Tensor, Tensor]:
    plan = block_pass.plan_of(layer)
    if plan.complete:
        first, *more = plan.levels
        out, lse = _joined(_level(first, q, k, v, block_pass, layer, scale))
    else:
        more = plan.levels
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf, dtype=_wide(q))
    if not more:
        return out, lse
    merged = out.to(_wide(out))
    for calls in more:
        parts = _level(calls, q, k, v, block_pass, layer, scale)
        for run in _adjacent(calls):
            rows = slice(run[0].q0, run[-1].q1)
            _merge(merged[:, :, rows], lse[:, :, rows], *_joined([next(parts) for _ in run]))
    return merged.to(q.dtype), lse


def _level(
    calls: tuple[Call, ...], q: Tensor, k: Tensor, v: Tensor, block_pass: BlockPass, layer: int, scale: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """out [1, heads, rows, head size] and lse of every call of a level."""
    inputs = ((q[:, :, call.q0 : call.q1], *_keys(call, k, v, block_pass, layer)) for call in calls)
    return block_pass.kernel.forward(inputs, calls[0].causal, scale)


def _joined(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """out and lse of calls whose queries follow each other without a gap."""
    outs, lses = zip(*parts, strict=True)
    if len(outs) == 1:
        return outs[0], lses[0]
    # Concatenated in the kernels' own layout, [rows, heads, head size].
    out = torch.cat([each.transpose(1, 2) for each in outs], dim=1).transpose(1, 2)
    return out, torch.cat([each.transpose(1, 2) for each in lses], dim=1).transpose(1, 2)


def _adjacent(calls: tuple[Call, ...]) -> list[list[Call]]:
    runs: list[list[Call]] = []
    for call in calls:
        if runs and runs[-1][-1].q1 == call.q0:
            runs[-1].append(call)
        else:
            runs.append([call])
    return runs


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Add a partial result into `out` and `lse`, in place."""
    total = torch.logaddexp(lse, part_lse)
    out.mul_(torch.exp(lse - total)[..., None])
    out.addcmul_(part.to(out.dtype), torch.exp(part_lse - total)[..., None])
    lse.copy_(total)


def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    block_pass: BlockPass,
    layer: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    plan = block_pass.plan_of(layer)
    grad_q, grad_k, grad_v = (_gradient(like, zero=not plan.complete) for like in (q, k, v))
    for calls in plan.levels:
        inputs = (
            (
                grad_out[:, :, call.q0 : call.q1],
                q[:, :, call.q0 : call.q1],
                *_keys(call, k, v, block_pass, layer),
                out[:, :, call.q0 : call.q1],
                lse[:, :, call.q0 : call.q1],
            )
            for call in calls
        )
        parts = block_pass.kernel.backward(inputs, calls[0].causal, scale)
        for call, (part_q, part_k, part_v) in zip(calls, parts, strict=True):
            rows, keys = slice(call.q0, call.q1), slice(call.k0, call.k1)
            if call.causal:  # The first level: nothing is there yet.
                grad_q[:, :, rows], grad_k[:, :, keys], grad_v[:, :, keys] = part_q, part_k, part_v
                continue
            grad_q[:, :, rows] += part_q
            if call.path:
                block_pass.stack.add_gradients(layer, call.k0, call.k1, part_k, part_v)
            else:
                grad_k[:, :, keys] += part_k
                grad_v[:, :, keys] += part_v
    if block_pass.received is not None:
        trunk = slice(0, block_pass.trunk)
        grad_k[:, :, trunk] += block_pass.received[layer, 0].transpose(0, 1)
        grad_v[:, :, trunk] += block_pass.received[layer, 1].transpose(0, 1)
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)


def _gradient(like: Tensor, zero: bool) -> Tensor:
    """[1, heads, rows, head size] whose memory is [rows, heads, head size], as the projections want it."""
    _, heads, rows, size = like.shape
    make = torch.zeros if zero else torch.empty
    return make((1, rows, heads, size), dtype=_wide(like), device=like.device).transpose(1, 2)


def _wide(x: Tensor) -> torch.dtype:
    """What sums of `x`'s dtype are kept in: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)
