import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rl_system.executor.attention.calls import attention_plan
from rl_system.executor.attention.cuda import FlashAttnKernel, TorchFlashKernel
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


@settings(max_examples=100, deadline=None)
@given(random_batches(), st.sampled_from([None, 2]), st.data())
def test_calls_for_wanted_rows_are_those_of_the_whole_block_in_these_rows(batch, causal_rows, data):
    blocks = plan_blocks(needed_nodes(batch, build_tree(batch)), 0).blocks
    assume(blocks)
    plan = attention_plan(blocks[0], causal_rows)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, plan.tokens - 1)))), np.int64)
    met, expected = np.zeros((2, plan.tokens, plan.tokens), int)
    for table, made in ((met, plan.wanted(rows)), (expected, plan)):
        for call in (call for calls in made.levels for call in calls):
            seen = np.tri(call.q1 - call.q0, call.k1 - call.k0, 0 if call.causal else plan.tokens, dtype=int)
            table[call.q0 : call.q1, call.k0 : call.k1] += seen
    np.testing.assert_array_equal(met[rows], expected[rows])
    assert not met[np.setdiff1d(np.arange(plan.tokens), np.arange(rows.min(initial=0), rows.max(initial=-1) + 1))].any()


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
    ((out, lse),) = fast.forward([(q, k, v)], causal, 0.3)
    for made, expected in zip((out, lse), *slow.forward([(q, k, v)], causal, 0.3), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    # Of a merged result: out and lse are not those of this call alone.
    call = (grad, q, k, v, out * 0.8, lse + 0.4)
    for made, expected in zip(*fast.backward([call], causal, 0.3), *slow.backward([call], causal, 0.3), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-11, atol=1e-11)


class VariableLengthOperators:
    """torch's variable-length flash operators, written out: what CUDA offers, with its layouts checked."""

    def __init__(self) -> None:
        self.launches = 0

    def _flash_attention_forward(self, q, k, v, q_offsets, k_offsets, most_q, most_k, dropout, causal, debug, *, scale):
        calls = self._calls(q_offsets, k_offsets, most_q, most_k, causal)
        for x, offsets in ((q, q_offsets), (k, k_offsets), (v, k_offsets)):
            assert x.dim() == 3 and x.is_contiguous() and int(offsets[-1]) == len(x)
        parts = list(
            ReferenceKernel().forward(((_rows(q, a), _rows(k, b), _rows(v, b)) for a, b in calls), causal, scale)
        )
        out = torch.cat([out[0].transpose(0, 1) for out, _ in parts])
        return out, torch.cat([lse[0] for _, lse in parts], dim=1), None, None, None

    def _flash_attention_backward(
        self, grad, q, k, v, out, lse, q_offsets, k_offsets, most_q, most_k, dropout, causal, state, unused, *, scale
    ):
        calls = self._calls(q_offsets, k_offsets, most_q, most_k, causal)
        assert lse.shape == (q.shape[1], q.shape[0]) and lse.is_contiguous()
        inputs = (
            (_rows(grad, a), _rows(q, a), _rows(k, b), _rows(v, b), _rows(out, a), lse[None, :, a]) for a, b in calls
        )
        grads = zip(*ReferenceKernel().backward(inputs, causal, scale), strict=True)
        return tuple(torch.cat([x[0].transpose(0, 1) for x in parts]) for parts in grads)

    def _calls(self, q_offsets, k_offsets, most_q, most_k, causal):
        self.launches += 1
        sides = []
        for offsets, most in ((q_offsets, most_q), (k_offsets, most_k)):
            assert offsets.dtype == torch.int32 and most == offsets.diff().max()
            sides.append([slice(a, b) for a, b in itertools.pairwise(offsets.tolist())])
        assert not causal or sides[0] == sides[1]
        return list(zip(*sides, strict=True))


class FlashAttnInterface:
    """The functions of `flash_attn.flash_attn_interface` that are called, by the argument names of its release 2.8."""

    def __init__(self) -> None:
        self.operators = VariableLengthOperators()

    def _flash_attn_varlen_forward(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal
    ):
        return self.operators._flash_attention_forward(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, causal, False, scale=softmax_scale
        )[:4]

    def _flash_attn_varlen_backward(
        self, dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic,
    ):  # fmt: skip
        assert (window_size_left, window_size_right, softcap, alibi_slopes) == (-1, -1, 0.0, None)
        grads = self.operators._flash_attention_backward(
            dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, causal,
            None, None, scale=softmax_scale,
        )  # fmt: skip
        for place, grad in zip((dq, dk, dv), grads, strict=True):
            place.copy_(grad)


def _rows(x: torch.Tensor, rows: slice) -> torch.Tensor:
    return x[rows].transpose(0, 1)[None]


@pytest.mark.parametrize("block_tokens", [16, 0])
@pytest.mark.parametrize("flash_attn", [False, True])
def test_the_cuda_kernels_keep_the_operators_calling_convention(monkeypatch, block_tokens, flash_attn):
    model, batch, loss = small_model(), multi_turn(2, 3), objective("ppo_clip")
    expected = step(model, batch, loss, method="tree", block_tokens=block_tokens)
    kernel = FlashAttnKernel(FlashAttnInterface()) if flash_attn else TorchFlashKernel(VariableLengthOperators())
    monkeypatch.setattr("rl_system.executor.make.CpuFlashKernel", lambda: kernel)
    assert_equal_steps(step(model, batch, loss, method="tree", block_tokens=block_tokens), expected, 1e-12)


def test_a_level_of_a_block_is_one_launch_on_cuda(monkeypatch):
    model, batch = small_model(), nested(40)
    operators = VariableLengthOperators()
    monkeypatch.setattr("rl_system.executor.make.CpuFlashKernel", lambda: TorchFlashKernel(operators))
    step(model, batch, objective("ppo_clip"), method="tree", block_tokens=0)
    (block,) = plan_blocks(needed_nodes(batch, build_tree(batch)), 0).blocks
    levels = len(attention_plan(block).levels)
    assert operators.launches == 2 * levels * model.config.num_hidden_layers
