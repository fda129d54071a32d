"""The parts of a decoder layer that treat every row alone, each as one differentiable step over chunks of rows.

    embed         token ids → rows
    project       norm → queries, keys, values (→ norm of heads) → rotary positions
    feed_forward  output projection → residual → norm → gated feed-forward → residual

What they compute is what transformers' Llama, Qwen2, Qwen3 and Mistral layers compute, with the modules' own parameters.
Chunks stay in the processor's cache; the backward computes cheap things again instead of keeping them, and adds the
gradients of weights straight into their buffers. So a row costs a third of the memory of the modules' own graph, and far
fewer passes over it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_system.executor.gradients import GradientBuffers
from rl_system.executor.products import pieces, product


def embed(token_ids: Tensor, module: nn.Embedding, gradients: GradientBuffers) -> Tensor:
    """int64 [rows] to [rows, hidden]. The gradient of a token that stands in many rows adds up in its buffer's dtype."""
    return _Embed.apply(token_ids, module.weight, module.padding_idx, gradients)


def project(
    x: Tensor, attention: nn.Module, norm: nn.Module, cos: Tensor, sin: Tensor, gradients: GradientBuffers
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [rows, hidden] to queries, keys and values [1, heads, rows, head size], rotated. cos, sin: [rows, head size]."""
    step = _Projection(attention, norm, cos, sin, gradients)
    return _Project.apply(x, step, *step.parameters())


def feed_forward(
    x: Tensor, attended: Tensor, attention: nn.Module, norm: nn.Module, mlp: nn.Module, gradients: GradientBuffers
) -> Tensor:
    """Residual rows [rows, hidden] and the attention's output [rows, heads · head size] to the layer's output."""
    step = _FeedForward(attention, norm, mlp, gradients)
    return _Feed.apply(x, attended, step, *step.parameters())


def _chunks(x: Tensor) -> list[slice]:
    return pieces(len(x)) if x.device.type == "cpu" else [slice(0, len(x))]


class _Rows:
    """Results of chunks of rows as one tensor; without a copy where one chunk is everything."""

    def __init__(self, rows: int) -> None:
        self.count, self.tensor = rows, None

    def put(self, rows: slice, values: Tensor) -> None:
        if len(values) == self.count:
            self.tensor = values
            return
        if self.tensor is None:
            self.tensor = values.new_empty((self.count, *values.shape[1:]))
        self.tensor[rows] = values


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, token_ids: Tensor, weight: nn.Parameter, padding: int | None, gradients: GradientBuffers) -> Tensor:
        ctx.token_ids, ctx.weight, ctx.padding, ctx.gradients = token_ids, weight, padding, gradients
        return functional.embedding(token_ids, weight)

    @staticmethod
    def backward(ctx, grad: Tensor):
        token_ids = ctx.token_ids
        if ctx.padding is not None:
            kept = token_ids != ctx.padding
            token_ids, grad = token_ids[kept], grad[kept]
        buffer = ctx.gradients.of(ctx.weight)
        buffer.index_add_(0, token_ids, grad.to(buffer.dtype))
        return None, None, None, None


@dataclass(slots=True)
class _Norm:
    """RMS norm over the last dimension: y = w · x / √(mean(x²) + ε), computed in at least float32."""

    module: nn.Module
    gradients: GradientBuffers

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, and the factor 1/√(…) of each row."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
        factor = square.div_(x.shape[-1]).add_(self.module.variance_epsilon).rsqrt_()
        return (wide * factor).to(x.dtype).mul_(self.module.weight), factor

    def backward(self, grad: Tensor, x: Tensor, factor: Tensor) -> Tensor:
        """d/dx. With n = x·factor and g = w·grad: factor · (g − n · mean(g·n))."""
        weight = self.module.weight
        wide = factor.dtype
        normal = x * factor
        by_weight = (grad * normal).flatten(0, -2)
        if weight.requires_grad:
            self.gradients.of(weight).add_(by_weight.sum(0))
        mean = (by_weight @ weight.to(wide)).view_as(factor).div_(x.shape[-1])
        return (grad * weight).to(wide).addcmul_(normal, mean, value=-1).mul_(factor).to(x.dtype)


@dataclass(slots=True)
class _Linear:
    module: nn.Linear
    gradients: GradientBuffers

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = product(x, self.module.weight, residual)
        return out if self.module.bias is None else out.add_(self.module.bias)

    def backward(self, grad: Tensor, residual: Tensor | None = None) -> Tensor:
        """d/dx for outputs' gradient `grad`, plus `residual`."""
        return product(grad, self.module.weight.T, residual)

    def add_gradients(self, grad: Tensor, x: Tensor) -> None:
        """Of weight and bias, for outputs' gradient `grad` and inputs `x`."""
        self.gradients.add_product(self.module.weight, grad, x)
        if self.module.bias is not None and self.module.bias.requires_grad:
            self.gradients.of(self.module.bias).add_(grad.sum(0))


class _Projection:
    def __init__(
        self, attention: nn.Module, norm: nn.Module, cos: Tensor, sin: Tensor, gradients: GradientBuffers
    ) -> None:
        self.norm = _Norm(norm, gradients)
        self.linears = [_Linear(each, gradients) for each in (attention.q_proj, attention.k_proj, attention.v_proj)]
        names = ("q_norm", "k_norm")
        self.head_norms = [_Norm(getattr(attention, name), gradients) for name in names if hasattr(attention, name)]
        self.head_size = attention.head_dim
        self.cos, self.sin = cos[:, None], sin[:, None]

    def parameters(self) -> list[nn.Parameter]:
        linears = [p for each in self.linears for p in each.module.parameters()]
        return [self.norm.module.weight, *linears, *(each.module.weight for each in self.head_norms)]

    def rotate(self, x: Tensor, rows: slice, sign: int, out: Tensor | None = None) -> Tensor:
        """Rotary positions of [rows, heads, head size]; sign −1 turns back. Both halves have the same angles."""
        half = x.shape[-1] // 2
        sin = self.sin[rows, :, :half]
        turned = torch.mul(x, self.cos[rows], out=out)
        turned[..., :half].addcmul_(x[..., half:], sin, value=-sign)
        turned[..., half:].addcmul_(x[..., :half], sin, value=sign)
        return turned


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, step: _Projection, *_: Tensor):
        outputs = [_Rows(len(x)) for _ in step.linears]
        plain = [_Rows(len(x)) for _ in step.head_norms]
        for rows in _chunks(x):
            normal, _ = step.norm.forward(x[rows])
            for index, (linear, output) in enumerate(zip(step.linears, outputs, strict=True)):
                heads = linear.forward(normal).unflatten(1, (-1, step.head_size))
                if index < 2:
                    if step.head_norms:
                        plain[index].put(rows, heads)
                        heads, _ = step.head_norms[index].forward(heads)
                    heads = step.rotate(heads, rows, 1)
                output.put(rows, heads)
        ctx.step = step
        ctx.save_for_backward(x, *(each.tensor for each in plain))
        return tuple(each.tensor.transpose(0, 1)[None] for each in outputs)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        x, *plain = ctx.saved_tensors
        step = ctx.step
        grads = [each[0].transpose(0, 1) for each in grads]
        grad_x = _Rows(len(x))
        for rows in _chunks(x):
            normal, factor = step.norm.forward(x[rows])
            grad_normal = None
            for index, linear in enumerate(step.linears):
                grad = grads[index][rows]
                if index < 2:
                    grad = step.rotate(grad, rows, -1)
                    if step.head_norms:
                        norm = step.head_norms[index]
                        grad = norm.backward(grad, plain[index][rows], norm.forward(plain[index][rows])[1])
                grad = grad.flatten(1)
                linear.add_gradients(grad, normal)
                grad_normal = linear.backward(grad, grad_normal)
            grad_x.put(rows, step.norm.backward(grad_normal, x[rows], factor))
        return grad_x.tensor, None, *[None] * len(step.parameters())


class _FeedForward:
    def __init__(self, attention: nn.Module, norm: nn.Module, mlp: nn.Module, gradients: GradientBuffers) -> None:
        self.norm = _Norm(norm, gradients)
        modules = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        self.output, self.gate, self.up, self.down = (_Linear(each, gradients) for each in modules)

    def parameters(self) -> list[nn.Parameter]:
        linears = (self.output, self.gate, self.up, self.down)
        return [self.norm.module.weight, *(p for each in linears for p in each.module.parameters())]


class _Feed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, attended: Tensor, step: _FeedForward, *_: Tensor) -> Tensor:
        result = _Rows(len(x))
        kept: list[Tensor] = []
        for rows in _chunks(x):
            middle = step.output.forward(attended[rows], residual=x[rows])
            normal, _ = step.norm.forward(middle)
            gate, up = step.gate.forward(normal), step.up.forward(normal)
            result.put(rows, step.down.forward(functional.silu(gate).mul_(up), residual=middle))
            kept += (middle, gate, up)
        ctx.step = step
        ctx.save_for_backward(attended, *kept)
        return result.tensor

    @staticmethod
    def backward(ctx, grad: Tensor):
        attended, *kept = ctx.saved_tensors
        step = ctx.step
        grad_x, grad_attended = _Rows(len(attended)), _Rows(len(attended))
        for rows, middle, gate, up in zip(_chunks(attended), kept[::3], kept[1::3], kept[2::3], strict=True):
            grad_product = step.down.backward(grad[rows])
            activated = functional.silu(gate)
            hidden = activated * up
            step.down.add_gradients(grad[rows], hidden)
            grad_up = activated.mul_(grad_product)
            grad_gate = torch.ops.aten.silu_backward.grad_input(grad_product.mul_(up), gate, grad_input=hidden)
            normal, factor = step.norm.forward(middle)
            step.gate.add_gradients(grad_gate, normal)
            step.up.add_gradients(grad_up, normal)
            grad_normal = step.up.backward(grad_up, step.gate.backward(grad_gate))
            grad_middle = step.norm.backward(grad_normal, middle, factor).add_(grad[rows])
            step.output.add_gradients(grad_middle, attended[rows])
            grad_attended.put(rows, step.output.backward(grad_middle))
            grad_x.put(rows, grad_middle)
        return grad_x.tensor, grad_attended.tensor, None, *[None] * len(step.parameters())
