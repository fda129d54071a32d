import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rl_system.training.flat_parameters import FlatParameters
from rl_system.training.publishing import publish_chunks, publish_directory
from rl_system.training.weights import export_weights, weights_checksum
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


def test_published_chunks_are_what_put_made_of_them_and_the_checksum_is_that_of_the_model():
    model = make_model()
    weights = publish_chunks(model, 7, 10_000, True, lambda chunk: {name: a.copy() for name, a in chunk.items()})
    before = exported(make_model())
    with torch.no_grad():
        model.model.norm.weight += 1  # the trainer goes on
    assert weights.version == 7 and weights.checksum == weights_checksum([before])
    assert weights_checksum(weights.chunks) == weights.checksum
    assert publish_chunks(model, 8, 10_000, False, dict).checksum == ""


def test_a_published_directory_holds_the_parameters_and_only_the_last_two_stay(tmp_path):
    model = make_model()
    for version in (1, 2, 3, 10, 11):
        weights = publish_directory(model, version, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version_10", "version_11"]
    assert weights.chunks == [str(tmp_path / "version_11")]
    loaded = load_file(tmp_path / "version_11" / "model.safetensors")
    assert all(np.array_equal(loaded[name].numpy(), array) for name, array in exported(model).items())
