import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from transformers import AutoTokenizer

from rl_system.config.model import ModelConfig
from rl_system.training.serving_files import serving_arguments
from tests.rl_system.chat.dialogues import DROPS_THINKING, HERMES, make_tokenizer
from tests.rl_system.training.conftest import make_model


def test_a_server_is_given_the_models_own_files_its_template_and_where_its_turns_end(tmp_path):
    model = make_model()
    model.generation_config.eos_token_id = 0
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    save_file({"wq": np.zeros(1, np.float32)}, tmp_path / "consolidated.safetensors")
    with serving_arguments(ModelConfig(path=str(tmp_path))) as arguments:
        given = dict(zip(arguments[::2], arguments[1::2], strict=True))
        served = Path(given["--model"])
        assert [path.name for path in served.glob("*.safetensors")] == ["model.safetensors"]
        assert AutoTokenizer.from_pretrained(served).get_vocab() == make_tokenizer().get_vocab()
        assert Path(given["--chat-template"]).read_text() == HERMES
        defaults = json.loads((Path(given["--generation-config"]) / "generation_config.json").read_text())
        assert defaults["eos_token_id"] == [0, make_tokenizer().convert_tokens_to_ids("<|im_end|>")]
    assert not served.exists() and (tmp_path / "consolidated.safetensors").exists()


def test_of_several_templates_the_one_for_tools_is_served(tmp_path):
    make_model().save_pretrained(tmp_path)
    tokenizer = make_tokenizer(DROPS_THINKING)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    path = tmp_path / "tokenizer_config.json"
    templates = [{"name": "default", "template": DROPS_THINKING}, {"name": "tool_use", "template": HERMES}]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": templates}))
    with serving_arguments(ModelConfig(path=str(tmp_path))) as arguments:
        assert Path(arguments[arguments.index("--chat-template") + 1]).read_text() == HERMES
