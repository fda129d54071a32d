"""Trainer, files and engines know a parameter by one name."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl_system.executor.models import SUPPORTED
from rl_system.training.model_files import load_parameters, save_parameters
from rl_system.training.parameter_names import under_saved_names
from rl_system.training.value_model import ValueModel
from rl_system.training.weights import load_units, own_tensors, saved_tensors
from tests.rl_system.executor.models import FAMILIES, small_model


def test_all_supported_families_are_among_those_tested() -> None:
    assert {config().model_type for config in FAMILIES.values()} == set(SUPPORTED)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_names_are_those_under_which_transformers_saves(family: str, tmp_path) -> None:
    model = small_model(family, torch.float32)
    model.save_pretrained(tmp_path)
    expected, found = load_file(tmp_path / "model.safetensors"), saved_tensors(model)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor) and found[name].is_contiguous()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_memory_tells_the_same_names_and_shapes(family: str) -> None:
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(FAMILIES[family]())
    expected = {name: tensor.shape for name, tensor in saved_tensors(small_model(family)).items()}
    assert {name: tensor.shape for name, tensor in saved_tensors(empty).items()} == expected


def test_saved_tensors_are_the_models_own_memory_and_take_none() -> None:
    model = small_model("qwen3_moe", torch.float32)
    saved = saved_tensors(model)
    assert sum(tensor.numel() for tensor in saved.values()) == sum(each.numel() for each in model.parameters())
    experts = model.model.layers[1].mlp.experts
    gate, up = saved["model.layers.1.mlp.experts.3.gate_proj.weight"], saved["model.layers.1.mlp.experts.3.up_proj.weight"]
    with torch.no_grad():
        gate.fill_(1.0)
        up.fill_(2.0)
        saved["model.layers.1.mlp.experts.0.down_proj.weight"].fill_(3.0)
    assert torch.equal(experts.gate_up_proj[3].unique(), torch.tensor([1.0, 2.0]))
    assert (experts.gate_up_proj[3][: len(gate)] == 1.0).all() and (experts.down_proj[0] == 3.0).all()
    assert not (experts.gate_up_proj[2] == 1.0).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_saved_is_loaded_into_the_same_parameters(family: str, tmp_path) -> None:
    model = small_model(family, torch.float32)
    save_parameters(saved_tensors(model), tmp_path)
    other = small_model(family, torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    load_parameters(other, tmp_path)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_critic_with_experts_is_saved_and_loaded(tmp_path) -> None:
    critic, other = (ValueModel(small_model("qwen3_moe", torch.float32)) for _ in range(2))
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.add_(1.0)
    save_parameters(saved_tensors(critic), tmp_path)
    load_parameters(other, tmp_path)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in critic.state_dict().items())


def test_all_experts_of_a_layer_travel_with_it() -> None:
    """An engine keeps the experts of a layer in one tensor."""
    units = load_units(saved_tensors(small_model("qwen3_moe")))
    assert len(units) == 2 + 3
    for layer in range(2):
        [unit] = [unit for unit in units if f"model.layers.{layer}.mlp.experts.0.up_proj.weight" in unit]
        assert all(name.startswith(f"model.layers.{layer}.") for name in unit)
        assert sum(".experts." in name for name in unit) == 4 * 3


def test_names_without_experts_stay_as_they_are() -> None:
    tensors = own_tensors(small_model("llama"))
    assert under_saved_names(tensors) == tensors
