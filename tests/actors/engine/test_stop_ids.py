import json
from pathlib import Path

from actors.engine.stop_ids import stop_token_ids


def test_stop_ids_are_those_of_all_files_and_the_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

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
