"""What was loaded can be saved, and a model that was saved is the same for whoever loads it."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from rl_system.config.model import ModelConfig
from rl_system.errors import UserError
from rl_system.training.loading import load_model, load_tokenizer
from rl_system.training.model_files import check_saving, save_model
from tests.rl_system.chat.dialogues import DROPS_THINKING, HERMES
from tests.rl_system.chat.dialogues import make_tokenizer as make_chat_tokenizer
from tests.rl_system.training.conftest import make_model, make_tokenizer

CONTRADICTING = {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 7]}


@pytest.fixture
def source(tmp_path):
    """A directory as somebody else saved it."""
    directory = tmp_path / "source"
    make_model(torch.float32).save_pretrained(directory)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = HERMES
    tokenizer.save_pretrained(directory)
    return directory


def edit(path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def saved_again(source, tmp_path):
    config = ModelConfig(path=str(source), max_model_len=256)
    model, tokenizer = load_model(config), load_tokenizer(config)
    check_saving(model, tokenizer)
    save_model(model, tokenizer, tmp_path)
    return tmp_path


def test_generation_defaults_that_contradict_each_other_are_saved_as_they_were(source, tmp_path):
    edit(source / "generation_config.json", **CONTRADICTING)
    with pytest.raises(ValueError):
        GenerationConfig.from_pretrained(source).save_pretrained(tmp_path)  # why this is not done
    saved = GenerationConfig.from_pretrained(saved_again(source, tmp_path))
    assert {name: getattr(saved, name) for name in CONTRADICTING} == CONTRADICTING


def test_a_configuration_with_generation_defaults_in_it_is_saved(source, tmp_path):
    """Files of earlier releases of transformers have them there."""
    edit(source / "config.json", temperature=0.7, max_length=300, do_sample=True)
    model = AutoModelForCausalLM.from_pretrained(saved_again(source, tmp_path))
    assert model.config.num_hidden_layers == 2


def test_a_configuration_that_names_its_own_files_is_saved_without_the_name(source, tmp_path):
    (source / "model.safetensors").rename(source / "other.safetensors")
    names = {name: "other.safetensors" for name in make_model().state_dict()}
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    edit(source / "config.json", transformers_weights="other.safetensors")
    before = load_model(ModelConfig(path=str(source), max_model_len=256)).state_dict()
    after = AutoModelForCausalLM.from_pretrained(saved_again(source, tmp_path)).state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("stated", "saved"), [(0, [0, 1]), ([0, 7], [0, 7, 1]), (1, 1), ([7, 1], [7, 1]), (None, 1)])
def test_the_end_of_turn_of_the_template_ends_a_text_of_whoever_serves_the_checkpoint(tmp_path, stated, saved):
    model = make_model()
    model.generation_config.eos_token_id = stated
    save_model(model, make_chat_tokenizer(), tmp_path)
    assert make_chat_tokenizer().convert_tokens_to_ids("<|im_end|>") == 1
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == saved
    assert AutoModelForCausalLM.from_pretrained(tmp_path).generation_config.eos_token_id == saved


def test_a_model_without_generation_defaults_is_saved_with_the_end_of_turn(tmp_path):
    model = make_model()
    model.generation_config = None
    save_model(model, make_chat_tokenizer(), tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"eos_token_id": 1}


def test_a_tokenizer_with_several_templates_keeps_them(source, tmp_path):
    templates = [{"name": "default", "template": DROPS_THINKING}, {"name": "tool_use", "template": HERMES}]
    (source / "chat_template.jinja").unlink()
    edit(source / "tokenizer_config.json", chat_template=templates)
    again = AutoTokenizer.from_pretrained(saved_again(source, tmp_path))
    assert again.chat_template == {"default": DROPS_THINKING, "tool_use": HERMES}


def test_the_source_is_left_as_it_was(source, tmp_path):
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    saved_again(source, tmp_path)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


class Unsaveable(PreTrainedTokenizerFast):
    def save_pretrained(self, *_, **__):
        raise NotImplementedError("this tokenizer keeps\nits secrets")


class Forgetful(PreTrainedTokenizerFast):
    def save_pretrained(self, directory, **more):
        make_chat_tokenizer().save_pretrained(directory, **more)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Unsaveable, "cannot be saved.*keeps its secrets"), (Forgetful, "another one when it is saved")],
)
def test_a_tokenizer_that_cannot_be_saved_is_found_out_before_training(kind, said):
    tokenizer = kind(tokenizer_object=make_tokenizer().backend_tokenizer)
    with pytest.raises(UserError, match=rf"model\.path: .*{said}"):
        check_saving(make_model(), tokenizer)


def test_a_configuration_that_cannot_be_saved_is_found_out_before_training():
    model = make_model()
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": {1, 2}}
    with pytest.raises(UserError, match=r"model\.path: .*cannot be saved"):
        check_saving(model, make_chat_tokenizer())
