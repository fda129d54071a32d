import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from rl_system.records import Weights
from rl_system.training.flat_parameters import FlatParameters
from rl_system.training.publishing import ChunkPublisher, publish_directory, same_bits
from rl_system.training.weights import export_weights, load_units, saved_tensors, weights_checksum
from tests.rl_system.training.conftest import make_model


def exported(model: torch.nn.Module, chunk_bytes: int = 1 << 30) -> dict[str, np.ndarray]:
    return {name: array for chunk in export_weights(model, chunk_bytes) for name, array in chunk.items()}


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_sent_under_its_own_name_and_tied_ones_once(tied):
    model = make_model(tied=tied)
    FlatParameters(model)
    arrays = exported(model)
    assert list(arrays) == [name for name, _ in model.named_parameters()]
    assert ("lm_head.weight" in arrays) == (not tied)
    for name, parameter in model.named_parameters():
        assert np.array_equal(arrays[name], parameter.detach().numpy())


def test_saved_buffers_travel_and_the_others_do_not():
    model = make_model()
    model.model.register_buffer("scale", torch.tensor([2.0]))
    model.model.register_buffer("cache", torch.tensor([3.0]), persistent=False)
    arrays = exported(model)
    assert "model.scale" in arrays and "model.cache" not in arrays


def test_chunks_keep_to_their_size_unless_one_array_is_larger():
    sizes = [[array.nbytes for array in chunk.values()] for chunk in export_weights(make_model(), 10_000)]
    assert len(sizes) > 3
    assert all(sum(chunk) <= 10_000 or len(chunk) == 1 for chunk in sizes)


def test_bfloat16_is_sent_as_it_is():
    model = make_model(torch.bfloat16)
    array = exported(model)["model.norm.weight"]
    assert array.dtype.name == "bfloat16" and array.nbytes == 2 * len(array)
    assert np.array_equal(array.astype(np.float32), model.model.norm.weight.detach().float().numpy())


def test_the_checksum_does_not_depend_on_how_arrays_are_cut_into_chunks():
    model = make_model()
    assert weights_checksum(export_weights(model, 5_000)) == weights_checksum(export_weights(model, 1 << 30))


@pytest.mark.parametrize("change", ["value", "name", "dtype", "shape", "missing"])
def test_the_checksum_notices_any_change(change):
    arrays = {"a": np.arange(6, dtype=np.float32), "b": np.zeros(3, np.float32)}
    changed = {
        "value": arrays | {"b": np.array([0, 0, -0.0], np.float32)},
        "name": {"a": arrays["a"], "c": arrays["b"]},
        "dtype": arrays | {"b": np.zeros(3, np.int32)},
        "shape": arrays | {"a": arrays["a"].reshape(2, 3)},
        "missing": {"a": arrays["a"]},
    }[change]
    assert weights_checksum([arrays]) != weights_checksum([changed])


def copied(chunk: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in chunk.items()}


def publisher_of(chunk_bytes: int = 10_000, verify: bool = True) -> ChunkPublisher:
    return ChunkPublisher(chunk_bytes, verify, copied, lambda content: content)


def values_of(weights: Weights) -> dict[str, np.ndarray]:
    chunks = [chunk.content for chunk in weights.chunks]
    assert sum(map(len, chunks)) == len({name for chunk in chunks for name in chunk})
    return {name: array for chunk in chunks for name, array in chunk.items()}


def assert_published(weights: Weights, model: torch.nn.Module) -> None:
    """All of `model` and nothing else, under its checksum."""
    expected, found = exported(model), values_of(weights)
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == array.tobytes() for name, array in expected.items())
    assert weights.checksum == weights_checksum([expected])


def test_what_was_published_does_not_change_with_later_updates():
    model = make_model()
    weights = publisher_of().publish(saved_tensors(model), 7)
    before = exported(make_model())
    with torch.no_grad():
        model.model.norm.weight += 1  # the trainer goes on
    assert weights.version == 7 and len(weights.chunks) > 1
    assert all(np.array_equal(values_of(weights)[name], array) for name, array in before.items())
    assert weights.checksum == weights_checksum([before])
    assert publisher_of(verify=False).publish(saved_tensors(model), 8).checksum == ""


def test_parameters_of_a_layer_and_no_others_are_a_unit():
    names = ["model.embed_tokens.weight", "model.layers.0.mlp.experts.3.w1", "model.layers.10.q", "model.layers.1.k"]
    names += ["model.layers.0.mlp.experts.4.w1", "model.norm.weight", "lm_head.weight"]
    assert load_units(names) == [
        ["model.embed_tokens.weight"],
        ["model.layers.0.mlp.experts.3.w1", "model.layers.0.mlp.experts.4.w1"],
        ["model.layers.10.q"],
        ["model.layers.1.k"],
        ["model.norm.weight"],
        ["lm_head.weight"],
    ]


LAYER = "model.layers.1.mlp.up_proj.weight"


@settings(max_examples=50)
@given(
    st.lists(st.sets(st.sampled_from(["model.embed_tokens.weight", LAYER, "model.norm.weight"])), max_size=6),
    st.sampled_from([1, 20_000, 1 << 30]),
    st.booleans(),
)
def test_every_publication_is_whole_and_after_two_of_a_kind_only_what_changed_is_put_anew(rounds, chunk_bytes, tied):
    model = make_model(tied=tied)
    publisher = publisher_of(chunk_bytes)
    previous = publisher.publish(saved_tensors(model), 0)
    assert_published(previous, model)
    settled: set[str] = set()
    for version, changed in enumerate(rounds, 1):
        with torch.no_grad():
            for name in changed:
                model.get_parameter(name).view(-1)[-1] += 1
        weights = publisher.publish(saved_tensors(model), version)
        assert_published(weights, model)
        known = {chunk.identity: chunk.content for chunk in previous.chunks}
        fresh = [chunk for chunk in weights.chunks if chunk.identity not in known]
        assert all(known[each.identity] is each.content for each in weights.chunks if each.identity in known)
        if changed == settled:  # what changes together has chunks of its own since the last time
            sent = {name for chunk in fresh for name in chunk.content}
            unit = {each for each in exported(model) if each.startswith("model.layers.1.")}
            assert sent == {n for name in changed for n in (unit if name == LAYER else {name})}
        settled, previous = changed, weights


def test_a_bit_is_a_change_and_not_a_number_is_itself():
    a = np.zeros(3_000_000, np.float32)
    b = a.copy()
    assert same_bits(a, b)
    b[-1] = -0.0
    assert not same_bits(a, b)
    a[5] = b[5] = np.nan
    a[-1] = -0.0
    assert same_bits(a, b)


def test_a_published_directory_holds_the_parameters_and_only_the_last_two_stay(tmp_path):
    model = make_model()
    for version in (1, 2, 3, 10, 11):
        weights = publish_directory(saved_tensors(model), version, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version_10", "version_11"]
    assert weights.directory == str(tmp_path / "version_11") and weights.chunks == []
    loaded = load_file(tmp_path / "version_11" / "model.safetensors")
    assert all(np.array_equal(loaded[name].numpy(), array) for name, array in exported(model).items())
