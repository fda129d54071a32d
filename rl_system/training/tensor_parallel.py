"""One model over several ranks: every layer's heads and feed-forward units dealt out, everything else on each of them.

`parallelize` takes a whole model and leaves this rank's share, as the model's own plan says (`base_model_tp_plan`): linear
layers cut by rows of output (column-parallel) or of input (row-parallel). What enters attention or feed-forward is the same
on all ranks, and what leaves is summed over them, so a layer costs two sums forward and two backward (arXiv 1909.08053,
section 3). Embeddings, norms and the output head are replicated.

Invariants: all ranks of the group run the same passes in the same order. Replicated parameters are the same on all of
them, bit for bit, once `agree_on_replicated` was called after every backward.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel

from rl_system.errors import UserError
from rl_system.training.ranks import Ranks

COLUMN, ROW, PARTIAL = "colwise", "rowwise", "replicated_with_grad_allreduce"
"""Styles of a plan. PARTIAL: replicated, but a rank's gradient covers its own heads alone."""
STYLES = (COLUMN, ROW, PARTIAL)
KEPT_WHOLE = ("embedding_rowwise", "colwise_gather_output")
"""Styles that only save memory: what they name (embeddings, output head) is replicated here."""
SMALL_ELEMENTS = 1 << 16
"""Gradients up to this size are summed together: what they cost is the call."""


class TensorGroup:
    """The ranks that share one model; this one is `rank` of `size`."""

    def __init__(self, rank: int = 0, size: int = 1, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self.group = rank, size, group

    def sum_in_place(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, share: Tensor, dim: int) -> Tensor:
        """Every rank's `share`, in the order of the ranks, side by side along `dim`."""
        shares = [torch.empty_like(share) for _ in range(self.size)]
        dist.all_gather(shares, share.contiguous(), group=self.group)
        return torch.cat(shares, dim)

    def share_of(self, whole: Tensor, dim: int) -> Tensor:
        """This rank's share of a tensor that is cut along `dim`; a view."""
        return whole.chunk(self.size, dim)[self.rank]


def deal_out(world: Ranks, size: int) -> tuple[Ranks, TensorGroup]:
    """This rank's place among the copies of the model, and among the `size` neighbours that share its copy.

    All ranks of `world` call it; `size` divides their number.
    """
    if size == 1:
        return world, TensorGroup()
    copies = world.size // size
    copy, place = divmod(world.rank, size)
    # Every process has to ask for every group, in one order, whether it is in it or not.
    sharing = [dist.new_group(range(each * size, (each + 1) * size)) for each in range(copies)]
    across = [dist.new_group(range(each, world.size, size)) for each in range(size)]
    return Ranks(copy, copies, across[place]), TensorGroup(place, size, sharing[copy])


class _Enter(torch.autograd.Function):
    """The same rows on every rank; their gradient is the sum of what the ranks made of them."""

    @staticmethod
    def forward(ctx, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return ctx.group.sum_in_place(grad.contiguous().clone()), None


class _Leave(torch.autograd.Function):
    """The sum of the ranks' rows; its gradient is the same for each of them."""

    @staticmethod
    def forward(ctx, x: Tensor, group: TensorGroup) -> Tensor:
        return group.sum_in_place(x.clone())

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


class ShardedLinear(nn.Linear):
    """This rank's share of a linear layer. dims: by parameter name, the dimension that it is cut along."""

    def __init__(self, whole: nn.Linear, group: TensorGroup, dims: dict[str, int]) -> None:
        nn.Module.__init__(self)
        self.group, self.dims = group, dims
        for name in ("weight", "bias"):
            parameter = getattr(whole, name)
            if parameter is None:
                self.register_parameter(name, None)
                continue
            share = group.share_of(parameter.detach(), dims[name]).clone() if name in dims else parameter.detach()
            self.register_parameter(name, nn.Parameter(share, requires_grad=parameter.requires_grad))
        self.out_features, self.in_features = self.weight.shape


class ColumnLinear(ShardedLinear):
    """Some of the outputs from all of the inputs."""

    def __init__(self, whole: nn.Linear, group: TensorGroup) -> None:
        super().__init__(whole, group, {"weight": 0, "bias": 0})


class RowLinear(ShardedLinear):
    """All of the outputs, summed over the ranks, from some of the inputs. The bias is replicated and added once."""

    def __init__(self, whole: nn.Linear, group: TensorGroup) -> None:
        super().__init__(whole, group, {"weight": 1})

    def forward(self, x: Tensor) -> Tensor:
        out = _Leave.apply(functional.linear(x, self.weight), self.group)
        return out if self.bias is None else out + self.bias


def parallelize(model: PreTrainedModel, group: TensorGroup) -> PreTrainedModel:
    """Cut `model`, whole and the same on every rank of `group`, to this rank's share, in place.

    Raises UserError where its plan or sizes do not allow it.
    """
    if group.size == 1:
        return model
    check_divisible(model.config, group.size)
    base = model.base_model
    entered = set()
    for name, style in list(_styles(base)):
        parent = base.get_submodule(name.rpartition(".")[0])
        whole = base.get_submodule(name)
        if style == PARTIAL:
            whole.partial_gradient = True
            continue
        setattr(parent, name.rpartition(".")[2], (ColumnLinear if style == COLUMN else RowLinear)(whole, group))
        if style == COLUMN and parent not in entered:
            entered.add(parent)
            parent.register_forward_pre_hook(_entrance(group), with_kwargs=True)
    return model


def check_divisible(config: PreTrainedConfig, size: int) -> None:
    """UserError unless a model of `config` can be dealt out to `size` ranks."""
    text = config.get_text_config()
    plan = getattr(text, "base_model_tp_plan", None) or {}
    if foreign := sorted(set(plan.values()) - {*STYLES, *KEPT_WHOLE}):
        raise UserError(
            f"allocation.tensor_parallel is {size}, but a model of type {text.model_type!r} needs {', '.join(foreign)} "
            "beyond sharded linear layers; use 1"
        )
    if not plan:
        raise UserError(
            f"allocation.tensor_parallel is {size}, but a model of type {text.model_type!r} says no way to be dealt out; "
            "use 1"
        )
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if (count := getattr(text, name)) % size:
            raise UserError(
                f"allocation.tensor_parallel is {size}, which does not divide the model's {name} {count}; use a divisor"
            )


def _styles(base: PreTrainedModel) -> Iterator[tuple[str, str]]:
    """Names of modules that the plan speaks of, with their style. A module that the model has not is passed over."""
    patterns = {
        re.compile(re.escape(name).replace(r"\*", r"\d+")): style
        for name, style in base.config.base_model_tp_plan.items()
        if style in STYLES
    }
    for name, _ in base.named_modules():
        for pattern, style in patterns.items():
            if pattern.fullmatch(name):
                yield name, style


def _entrance(group: TensorGroup):
    """Hook of a module whose column-parallel layers all read its first argument."""

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        if args:
            return (_Enter.apply(args[0], group), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": _Enter.apply(kwargs["hidden_states"], group)}

    return enter


# -- parameters of a model that is dealt out -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the parameters of a model lie on the ranks of `group`. dims: of those that are dealt out, by name, the dimension
    that they are cut along; partial: replicated ones whose gradients cover this rank's heads alone."""

    group: TensorGroup
    dims: Mapping[str, int]
    partial: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module) -> Sharding:
        """Of a model that is whole, a group of one."""
        group, dims, partial = TensorGroup(), {}, set()
        for prefix, module in model.named_modules():
            dot = f"{prefix}." if prefix else ""
            if isinstance(module, ShardedLinear):
                group = module.group
                present = {name for name, _ in module.named_parameters(recurse=False)}
                dims |= {dot + name: dim for name, dim in module.dims.items() if name in present}
            if getattr(module, "partial_gradient", False):
                partial |= {dot + name for name, _ in module.named_parameters(recurse=False)}
        return cls(group, dims, frozenset(partial))

    def whole(self, name: str, share: Tensor) -> Tensor:
        """The whole tensor that `share` is this rank's part of. All ranks ask for the same names in the same order."""
        return self.group.gather(share, self.dims[name]) if name in self.dims else share

    def share(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of `whole`."""
        return self.group.share_of(whole, self.dims[name]) if name in self.dims else whole


def agree_on_replicated(gradients: Mapping[str, Tensor], sharding: Sharding) -> None:
    """Make the gradients of replicated parameters the same on all ranks of the group, bit for bit, in place.

    Every rank has the whole gradient of most of them, up to the rounding of a device that adds in no fixed order: they
    are averaged. Partial ones are summed.
    """
    group = sharding.group
    if group.size == 1:
        return
    replicated = {name: gradient for name, gradient in gradients.items() if name not in sharding.dims}
    for name, gradient in replicated.items():
        if name not in sharding.partial:
            gradient.div_(group.size)
    large = [each for each in replicated.values() if each.numel() > SMALL_ELEMENTS]
    small = [each for each in replicated.values() if each.numel() <= SMALL_ELEMENTS]
    for gradient in large:
        group.sum_in_place(gradient)
    _sum_together(small, group)


def _sum_together(tensors: Iterable[Tensor], group: TensorGroup) -> None:
    tensors = list(tensors)
    if not tensors:
        return
    total = group.sum_in_place(torch.cat([each.flatten() for each in tensors]))
    for each, part in zip(tensors, total.split([each.numel() for each in tensors]), strict=True):
        each.copy_(part.view_as(each))
