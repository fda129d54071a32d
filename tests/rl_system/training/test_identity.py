import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl_system.config.load import build_config
from rl_system.errors import UserError
from rl_system.training import identity
from rl_system.training.identity import contents, model_fingerprint


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (directory / "tokenizer.json").write_text("{}")
    save_file({"weight": np.arange(1 << 20, dtype=np.float32)}, directory / "model.safetensors")
    return directory


def test_a_model_is_the_same_wherever_it_lies_and_whatever_lies_beside_it(model, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / "README.md").write_text("read me")
    assert model_fingerprint(copy) == model_fingerprint(model)


@pytest.mark.parametrize("change", ["weights", "config", "tokenizer", "template"])
def test_a_model_that_differs_in_what_it_does_is_another(model, change, monkeypatch):
    monkeypatch.setattr(identity, "WHOLE_BYTES", 1 << 16)  # so that the file is a large one
    before = model_fingerprint(model)
    if change == "weights":
        weight = load_file(model / "model.safetensors")["weight"]
        save_file({"weight": weight * np.float32(1 + 1e-6)}, model / "model.safetensors")
    elif change == "config":
        (model / "config.json").write_text('{"architectures": ["MistralForCausalLM"]}')
    elif change == "tokenizer":
        (model / "tokenizer.json").write_text("[]")
    else:
        (model / "chat_template.jinja").write_text("{{ messages }}")
    assert model_fingerprint(model) != before


def test_a_chat_template_counts_by_its_contents(model, tmp_path):
    def fingerprint(path) -> str | None:
        words = ["--model.path", str(model)] + (["--model.chat_template", str(path)] if path else [])
        return contents(build_config({"name": "run"}, words))["model.chat_template"]

    one, other = tmp_path / "one.jinja", tmp_path / "other.jinja"
    one.write_text("{{ messages }}")
    other.write_text("{{ messages }}")
    assert fingerprint(one) == fingerprint(other) is not None and fingerprint(None) is None
    other.write_text("{{ tools }}")
    assert fingerprint(one) != fingerprint(other)
    with pytest.raises(UserError, match="model.chat_template .* cannot be read"):
        fingerprint(tmp_path / "absent.jinja")
