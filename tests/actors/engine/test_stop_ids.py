import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from actors.engine.stop_ids import stop_token_ids
from rl_system.config.model import ModelConfig
from rl_system.errors import UserError
from rl_system.training.loading import load_renderer
from tests.rl_system.chat.dialogues import HERMES, make_tokenizer
from tests.rl_system.training.conftest import make_model


def test_stop_ids_are_those_of_all_files_and_the_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({"<unk>": 0, "<end_of_turn>": 1}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end_of_turn>").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 5]}))
    assert stop_token_ids(tmp_path) == [1, 5, 9]


def test_files_that_are_missing_or_name_no_token_add_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": None}))
    assert stop_token_ids(tmp_path) == []
    (tmp_path / "generation_config.json").write_text("{}")
    assert stop_token_ids(tmp_path) == []


@pytest.fixture
def base_model(tmp_path: Path) -> Path:
    """A base model: every file knows one end of sequence, and the template ends a turn by another token."""
    directory = tmp_path / "base"
    model = make_model()
    model.config.eos_token_id = model.generation_config.eos_token_id = 0
    model.save_pretrained(directory)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer().backend_tokenizer, eos_token="<|im_start|>")
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("given", ["the model's own", "in the configuration", "of the tool format"])
def test_the_end_of_turn_of_the_template_that_is_used_is_a_stop_id_wherever_it_comes_from(
    base_model: Path, tmp_path: Path, given: str
) -> None:
    config = ModelConfig(path="elsewhere")
    if given == "the model's own":
        (base_model / "chat_template.jinja").write_text(HERMES)
    elif given == "in the configuration":
        (base_model / "chat_template.jinja").write_text(HERMES.replace("<|im_end|>", "<|im_start|>"))
        (tmp_path / "mine.jinja").write_text(HERMES)
        config = config.model_copy(update={"chat_template": str(tmp_path / "mine.jinja")})
    end = make_tokenizer().convert_tokens_to_ids("<|im_end|>")
    assert stop_token_ids(base_model) == [0]
    assert stop_token_ids(base_model, config) == [0, end]
    renderer = load_renderer(config.model_copy(update={"path": str(base_model)}))
    assert (renderer.end_id, renderer.stop_ids) == (end, {0, end}), "engine and agent loop know the same ends"


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "</s>"}'])
def test_files_that_name_no_ids_are_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(UserError, match=r"model\.path .*generation_config\.json"):
        stop_token_ids(tmp_path)
