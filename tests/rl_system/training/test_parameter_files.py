"""Which files of a directory count as the model, whatever else lies there."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from rl_system.config.model import ModelConfig
from rl_system.errors import UserError
from rl_system.training.loading import load_model
from rl_system.training.model_files import load_parameters
from rl_system.training.parameter_files import (
    INDEX_FILE,
    SINGLE_FILE,
    only_parameter_files,
    parameter_files,
    tensor_shapes,
)
from rl_system.training.prepared import model_directory
from tests.rl_system.training.conftest import make_model

ORIGINAL = "consolidated.safetensors"


def save(directory, *, files: int = 1, seed: int = 0):
    """A tiny model in `directory`, in one file or several."""
    model = make_model(torch.float32, seed=seed)
    model.save_pretrained(directory, max_shard_size="20KB" if files > 1 else "1GB")
    return model


def add(directory, name: str):
    save_file({"layers.0.attention.wq.weight": np.zeros((4, 4), np.float32)}, directory / name)


def is_loaded(model, directory) -> bool:
    """Whether the trainer's model from `directory` has the parameters of `model`."""
    loaded = load_model(ModelConfig(path=str(directory), max_model_len=256)).state_dict()
    return all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("files", [1, 5])
@pytest.mark.parametrize("beside", [ORIGINAL, "consolidated.00.safetensors", "adapter_model.safetensors"])
def test_other_safetensors_files_beside_the_model_do_not_count(tmp_path, files, beside):
    model = save(tmp_path, files=files)
    before = parameter_files(tmp_path)
    assert (len(before) > 1) == (files > 1)
    add(tmp_path, beside)
    assert parameter_files(tmp_path) == before
    assert is_loaded(model, tmp_path)
    load_parameters(make_model(torch.float32, seed=1), tmp_path)
    with only_parameter_files(tmp_path) as view:
        assert sorted(path.name for path in view.glob("*.safetensors")) == sorted(path.name for path in before)
        assert tensor_shapes(parameter_files(view)) == tensor_shapes(before)
        assert (view / "config.json").read_text() == (tmp_path / "config.json").read_text()
    assert not view.exists() and parameter_files(tmp_path) == before


def test_a_directory_with_nothing_beside_the_model_is_read_where_it_is(tmp_path):
    save(tmp_path, files=5)
    with only_parameter_files(tmp_path) as view:
        assert view == tmp_path
    assert tmp_path.exists()


def test_an_index_decides_over_a_single_file_that_an_earlier_save_left(tmp_path):
    """transformers would load the single file, vLLM what the index names."""
    save(tmp_path / "old", seed=1)
    model = save(tmp_path / "new", files=5)
    (tmp_path / "old" / SINGLE_FILE).rename(tmp_path / "new" / SINGLE_FILE)
    assert SINGLE_FILE not in [path.name for path in parameter_files(tmp_path / "new")]
    assert is_loaded(model, tmp_path / "new")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": {"a": "model.safetensors"}}',
        '{"metadata": {}, "weight_map": []}',
        '{"metadata": {}, "weight_map": {}}',
        '{"metadata": {}, "weight_map": {"a": "parts/model.safetensors"}}',
    ],
)
def test_an_index_that_is_none_is_refused_by_name(tmp_path, content):
    save(tmp_path)
    (tmp_path / INDEX_FILE).write_text(content)
    with pytest.raises(UserError, match=rf"model\.path.*{INDEX_FILE} is no index"):
        model_directory(str(tmp_path))


def test_an_index_that_is_no_text_is_refused_by_name(tmp_path):
    save(tmp_path)
    (tmp_path / INDEX_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=f"{INDEX_FILE} is no index"):
        parameter_files(tmp_path)


def test_a_file_that_the_index_names_and_that_is_missing_is_named(tmp_path):
    save(tmp_path, files=5)
    gone = parameter_files(tmp_path)[2]
    gone.unlink()
    with pytest.raises(UserError, match=f"{INDEX_FILE} names {gone.name}, which is not there"):
        parameter_files(tmp_path)


def test_a_model_in_another_format_alone_is_refused_with_what_there_is(tmp_path):
    save(tmp_path)
    (tmp_path / SINGLE_FILE).unlink()
    add(tmp_path, ORIGINAL)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=f"only {ORIGINAL}, pytorch_model.bin; save"):
        parameter_files(tmp_path)


@pytest.mark.parametrize("damage", [lambda whole: whole[:-7], lambda whole: whole[:3], lambda whole: b""])
def test_a_file_that_is_cut_is_named(tmp_path, damage):
    save(tmp_path)
    path = tmp_path / SINGLE_FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=f"{path} is not a whole safetensors file"):
        tensor_shapes(parameter_files(tmp_path))
