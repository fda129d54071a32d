import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.executor.attention.calls import attention_plan
from rl_system.executor.attention.cuda import CudaFlashKernel
from rl_system.executor.attention.kernels import CpuFlashKernel, ReferenceKernel
from rl_system.executor.workload import needed_nodes
from rl_system.tree import build_tree
from rl_system.tree.block_plan import plan_blocks
from tests.rl_system.executor.comparing import assert_equal_steps, objective, step
from tests.rl_system.executor.models import small_model
from tests.rl_system.trees import multi_turn, nested, random_batches


@settings(max_examples=150, deadline=None)
@given(random_batches(), st.integers(0, 12), st.sampled_from([None, 1, 2, 3]))
def test_each_row_meets_itself_and_every_ancestor_exactly_once(batch, block_tokens, causal_rows):
    tree = build_tree(batch)
    for block in plan_blocks(needed_nodes(batch, tree), block_tokens).blocks:
        rows = block.rows()
        met = np.zeros((len(rows), len(rows)), int)
        path = np.zeros(len(rows), int)
        plan = attention_plan(block, causal_rows)
        for calls in plan.levels:
            assert all(a.q1 <= b.q0 for a, b in zip(calls[:-1], calls[1:], strict=True))
            for call in calls:
                if call.path:
                    assert call.k0 == 0
                    path[call.q0 : call.q1] += call.k1
                elif call.causal:
                    size = call.q1 - call.q0
                    assert size <= (causal_rows or size)
                    met[call.q0 : call.q1, call.k0 : call.k1] += np.tril(np.ones((size, size), int))
                else:
                    met[call.q0 : call.q1, call.k0 : call.k1] += 1
        assert sum(call.q1 - call.q0 for call in plan.levels[0]) == len(rows)
        ends = tree.row_end()
        expected = (rows[None] <= rows[:, None]) & (rows[:, None] < ends[rows][None])
        np.testing.assert_array_equal(met, expected)
        np.testing.assert_array_equal(path, block.attach)


def test_forks_nested_hundreds_deep_are_merged_a_few_times_only():
    batch = nested(600)
    tree = build_tree(batch)
    (block,) = plan_blocks(needed_nodes(batch, tree), 0).blocks
    assert len(attention_plan(block).levels) <= 12


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries, keys", [(1, 1), (5, 5), (70, 70)])
def test_the_cpu_kernel_agrees_with_the_definition_for_grouped_heads_and_any_strides(queries, keys, causal):
    random = torch.Generator().manual_seed(0)

    def draw(rows: int, heads: int) -> torch.Tensor:
        wide = torch.randn(rows, heads + 1, 16, dtype=torch.float64, generator=random)
        return wide[:, :heads].transpose(0, 1)[None]

    if not causal:
        keys += 37
    q, k, v, grad = draw(queries, 4), draw(keys, 2), draw(keys, 2), draw(queries, 4)
    fast, slow = CpuFlashKernel(), ReferenceKernel()
    out, lse = fast.forward(q, k, v, causal, 0.3)
    for made, expected in zip((out, lse), slow.forward(q, k, v, causal, 0.3), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    # Of a merged result: out and lse are not those of this call alone.
    merged, merged_lse = out * 0.8, lse + 0.4
    for made, expected in zip(
        fast.backward(grad, q, k, v, merged, merged_lse, causal, 0.3),
        slow.backward(grad, q, k, v, merged, merged_lse, causal, 0.3),
        strict=True,
    ):
        torch.testing.assert_close(made, expected, rtol=1e-11, atol=1e-11)


class VariableLengthOperators:
    """torch's variable-length flash operators, written out: what CUDA offers, with its layouts checked."""

    def _flash_attention_forward(self, q, k, v, q_offsets, k_offsets, most_q, most_k, dropout, causal, debug, *, scale):
        self._check(q, k, v, q_offsets, k_offsets, most_q, most_k)
        out, lse = ReferenceKernel().forward(*(x.transpose(0, 1)[None] for x in (q, k, v)), causal, scale)
        return out[0].transpose(0, 1), lse[0], None, None, None

    def _flash_attention_backward(
        self, grad, q, k, v, out, lse, q_offsets, k_offsets, most_q, most_k, dropout, causal, state, unused, *, scale
    ):
        self._check(q, k, v, q_offsets, k_offsets, most_q, most_k)
        assert lse.shape == (q.shape[1], q.shape[0]) and lse.is_contiguous()
        grad, q, k, v, out = (x.transpose(0, 1)[None] for x in (grad, q, k, v, out))
        grads = ReferenceKernel().backward(grad, q, k, v, out, lse[None], causal, scale)
        return tuple(x[0].transpose(0, 1) for x in grads)

    def _check(self, q, k, v, q_offsets, k_offsets, most_q, most_k):
        for x, offsets, most in ((q, q_offsets, most_q), (k, k_offsets, most_k), (v, k_offsets, most_k)):
            assert x.dim() == 3 and x.is_contiguous()
            assert offsets.dtype == torch.int32 and offsets.tolist() == [0, len(x)] and most == len(x)


@pytest.mark.parametrize("block_tokens", [16, 0])
def test_the_cuda_kernel_keeps_the_operators_calling_convention(monkeypatch, block_tokens):
    model, batch, loss = small_model(), multi_turn(2, 3), objective("ppo_clip")
    expected = step(model, batch, loss, method="tree", block_tokens=block_tokens)
    kernel = CudaFlashKernel(VariableLengthOperators())
    monkeypatch.setattr("rl_system.executor.make.CpuFlashKernel", lambda: kernel)
    assert_equal_steps(step(model, batch, loss, method="tree", block_tokens=block_tokens), expected, 1e-12)
