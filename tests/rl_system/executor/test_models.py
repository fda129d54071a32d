import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config

from rl_system.config.executor import ExecutorConfig
from rl_system.errors import UserError
from rl_system.executor import make_executor
from tests.rl_system.executor.models import SIZES

REFUSED = {
    "sliding window": lambda: MistralConfig(**SIZES, sliding_window=16),
    "sliding window ": lambda: Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=1),
    "attention_dropout": lambda: LlamaConfig(**SIZES, attention_dropout=0.1),
    "gemma2": lambda: Gemma2Config(**SIZES),
}


@pytest.mark.parametrize("named", REFUSED)
def test_a_model_whose_attention_is_not_plain_is_refused_by_name(named):
    model = AutoModelForCausalLM.from_config(REFUSED[named]())
    with pytest.raises(UserError, match=named.strip()):
        make_executor(model, ExecutorConfig())


def test_soft_capped_logits_are_refused():
    config = LlamaConfig(**SIZES)
    config.attn_logit_softcapping = 30.0
    with pytest.raises(UserError, match="attn_logit_softcapping"):
        make_executor(AutoModelForCausalLM.from_config(config), ExecutorConfig())


def test_attention_sinks_are_refused():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
    model.model.layers[0].self_attn.sinks = torch.nn.Parameter(torch.zeros(4))
    with pytest.raises(UserError, match="sinks"):
        make_executor(model, ExecutorConfig())


def test_running_leaves_the_model_as_it_was():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES))
    implementation = model.config._attn_implementation
    ids = torch.tensor([[1, 2, 3, 4]])
    before = model(ids).logits
    from tests.rl_system.executor.comparing import objective, step
    from tests.rl_system.trees import multi_turn

    for method in ("tree", "dense_ckpt"):
        step(model, multi_turn(2, 2), objective("sft"), method=method)
    assert model.config._attn_implementation == implementation
    assert not model.is_gradient_checkpointing
    torch.testing.assert_close(model(ids).logits, before)
