import pytest
import torch

from rl_system.training import flat_parameters
from rl_system.training.flat_parameters import ALIGNMENT, FlatParameters
from tests.rl_system.training.conftest import make_model


def test_the_model_computes_the_same_from_the_flat_vector(model):
    ids = torch.arange(5)[None]
    before = model(ids).logits
    FlatParameters(model)
    assert torch.equal(model(ids).logits, before)


def test_autograd_writes_into_the_flat_gradients(model):
    flat = FlatParameters(model)
    oracle = make_model()
    for each in (model, oracle):
        each(torch.arange(5)[None]).logits.square().sum().backward()
    for name, parameter in oracle.named_parameters():
        torch.testing.assert_close(flat.gradient_of[name], parameter.grad, rtol=1e-12, atol=1e-12)


def test_tied_embeddings_appear_once(model):
    flat = FlatParameters(model)
    assert sum("embed" in slot.name or "lm_head" in slot.name for slot in flat.slots) == 1
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_norms_are_not_decayed_and_matrices_are(model):
    decayed = {slot.name: slot.decayed for slot in FlatParameters(model).slots}
    assert {name for name, value in decayed.items() if not value} == {name for name in decayed if "norm" in name}


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@pytest.mark.parametrize("bucket_elements", [ALIGNMENT, 1000, 1 << 25])
def test_shares_of_all_shards_cover_the_vector_once(model, shards, bucket_elements, monkeypatch):
    monkeypatch.setattr(flat_parameters, "BUCKET_ELEMENTS", bucket_elements)
    flat = FlatParameters(model, shards)
    covered = torch.zeros(flat.length, dtype=torch.int32)
    for shard in range(shards):
        for share in flat.shares(shard):
            covered[share] += 1
    assert (covered == 1).all()
    assert flat.length >= max(slot.stop for slot in flat.slots)


def test_frozen_parameters_stay_out(model):
    model.model.embed_tokens.weight.requires_grad_(False)
    assert not any("embed" in slot.name for slot in FlatParameters(model).slots)
