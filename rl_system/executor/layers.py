"""How the tree executor runs the decoder layers of a transformers model.

Attention goes through the registry whatever the layer is made of. A layer whose row-local parts are the common ones
(norm, linear projections, rotary positions, gated feed-forward) runs them through `rowwise`; any other module, such as a
mixture of experts or a sharded linear layer, runs as it is.

The last layer computes queries and everything after attention only for the rows that anything is predicted from; of a
trunk that is pushed nothing is predicted, so its last layer only computes keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from rl_system.executor.attention.function import ATTENTION_NAME, BlockPass, prefix_tree_attention
from rl_system.executor.gradients import GradientBuffers
from rl_system.executor.linears import plain_linear
from rl_system.executor.models import attention
from rl_system.executor.rowwise import feed_forward, project


@contextmanager
def tree_layers(model: PreTrainedModel, gradients: GradientBuffers) -> Iterator[None]:
    """While this is entered, the model runs block passes: `model.base_model(…, block_pass=…)`."""
    layers = model.base_model.layers
    last = len(layers) - 1
    for index, layer in enumerate(layers):
        layer.forward = partial(_run, layer, gradients, index == last)
    try:
        with attention(model, ATTENTION_NAME):
            yield
    finally:
        for layer in layers:
            del layer.forward


def _run(
    layer: nn.Module,
    gradients: GradientBuffers,
    last: bool,
    hidden_states: Tensor,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    block_pass: BlockPass,
    **others: object,
) -> Tensor:
    wanted = block_pass.wanted if last else None
    module = layer.self_attn
    if not _plain(module, ("q_proj", "k_proj", "v_proj", "o_proj")):
        inputs = {"position_embeddings": position_embeddings, "block_pass": block_pass, **others}
        result = type(layer).forward(layer, hidden_states, **inputs)
        return result if wanted is None else result[:, wanted]
    x, (cos, sin) = hidden_states[0], position_embeddings
    q, k, v = project(x, module, layer.input_layernorm, cos[0], sin[0], gradients)
    attended, _ = prefix_tree_attention(module, q, k, v, None, scaling=module.scaling, block_pass=block_pass)
    attended = attended[0].flatten(1)
    if wanted is not None:
        x, attended = x[wanted], attended[wanted]
    norm, mlp = layer.post_attention_layernorm, layer.mlp
    if _plain(mlp, ("gate_proj", "up_proj", "down_proj")) and isinstance(mlp.act_fn, (nn.SiLU, SiLUActivation)):
        return feed_forward(x, attended, module, norm, mlp, gradients)[None]
    x = (x + module.o_proj(attended))[None]
    return x + mlp(norm(x))


def _plain(module: nn.Module, names: tuple[str, ...]) -> bool:
    return all(plain_linear(getattr(module, name, None)) for name in names)
