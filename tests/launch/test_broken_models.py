"""A model directory with something wrong in it is one paragraph that names the file, already in a dry run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from launch import train
from tests.rl_system.chat.test_template import NEEDS_A_USER, WITHOUT_TOOLS

CONFIG = Path(__file__).parents[2] / "configs" / "tau2_mock_cpu.yaml"
WEIGHTS = "model.safetensors"


@pytest.fixture
def model(chat_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(chat_model, tmp_path / "model"))


def dry_run(model: Path, output: Path, capsys) -> tuple[int, str]:
    arguments = ["--config", CONFIG, "--model.path", model, "--output", output, "--warm_start.enabled", "false"]
    code = train.main([*map(str, arguments), "--dry-run"])
    return code, capsys.readouterr().err


def written(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda model: (model / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def cut(name: str, share: float = 0.5) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        whole = (model / name).read_bytes()
        (model / name).write_bytes(whole[: int(len(whole) * share)])

    return spoil


def without(*names: str) -> Callable[[Path], None]:
    return lambda model: [(model / name).unlink() for name in names]


def configured(**values) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return spoil


def tensors(change: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        arrays = load_file(model / WEIGHTS)
        change(arrays)
        save_file(arrays, model / WEIGHTS, metadata={"format": "pt"})

    return spoil


INDEX = '{"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}'
BROKEN = {
    "parameters cut": (cut(WEIGHTS), f"{WEIGHTS} is not a whole safetensors file"),
    "parameters empty": (written(WEIGHTS, b""), f"{WEIGHTS} is not a whole safetensors file"),
    "parameters missing": (without(WEIGHTS), f"holds neither {WEIGHTS} nor"),
    "index cut": (written(f"{WEIGHTS}.index.json", INDEX[:30]), f"{WEIGHTS}.index.json is no index"),
    "index of absent files": (written(f"{WEIGHTS}.index.json", INDEX), "names model-00001-of-00002.safetensors, which"),
    "a parameter missing": (tensors(lambda arrays: arrays.pop("model.norm.weight")), "lacks 1 parameters"),
    "a parameter of another shape": (configured(vocab_size=100), "embed_tokens.weight has the shape [49152, 64]"),
    "a quantized model": (
        tensors(lambda arrays: arrays.update({"model.norm.weight_scale": np.ones(1, np.float32)})),
        "model.norm.weight_scale",
    ),
    "config cut": (cut("config.json"), "config.json cannot be read"),
    "config missing": (without("config.json"), "holds no config.json"),
    "config of bytes": (written("config.json", b"\xff\xfe"), "config.json cannot be read"),
    "config a list": (written("config.json", "[]"), "config.json"),
    "config of an unknown type": (configured(model_type="nonsense"), "nonsense"),
    "config of custom code": (
        configured(model_type="nonsense", auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}),
        "custom code",
    ),
    "config with a word for a number": (configured(hidden_size="many"), "hidden_size"),
    "config with no heads": (configured(num_attention_heads=0), "config.json describes no model"),
    "config with an unknown activation": (configured(hidden_act="nonsense"), "nonsense"),
    "architectures of another kind": (configured(architectures=[3]), "causal language model"),
    "generation defaults cut": (written("generation_config.json", "{"), "generation_config.json cannot be read"),
    "generation defaults a list": (written("generation_config.json", "[]"), "generation_config.json"),
    "tokenizer missing": (without("tokenizer.json"), "tokenizer.json"),
    "tokenizer cut": (cut("tokenizer.json"), "tokenizer.json cannot be read"),
    "tokenizer of another kind": (written("tokenizer.json", "{}"), "holds no tokenizer that can be loaded"),
    "tokenizer of bytes": (written("tokenizer.json", b"\xff\xfe"), "tokenizer.json cannot be read"),
    "tokenizer's configuration cut": (cut("tokenizer_config.json"), "tokenizer_config.json cannot be read"),
    "tokenizer's special tokens cut": (
        written("special_tokens_map.json", "{"),
        "special_tokens_map.json cannot be read",
    ),
    "all of the tokenizer missing": (without("tokenizer.json", "tokenizer_config.json"), "tokenizer.json"),
    "template of no jinja": (written("chat_template.jinja", "{% for m in %}"), "model.chat_template"),
    "template that needs a user": (written("chat_template.jinja", NEEDS_A_USER), "No user query found in messages."),
    "template without tools": (written("chat_template.jinja", WITHOUT_TOOLS), "does not show a dialogue's tools"),
    "template of bytes": (written("chat_template.jinja", b"\xff"), "tokenizer"),
}


@pytest.mark.parametrize(("spoil", "named"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_with_a_models_files_is_one_paragraph_in_a_dry_run(spoil, named, model, tmp_path, capsys):
    spoil(model)
    code, said = dry_run(model, tmp_path / "runs", capsys)
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(lines) == 1 and "Traceback" not in said, said
    assert named in lines[0] and "model." in lines[0] and lines[0].count("error: ") == 1
    assert not (tmp_path / "runs").exists()


def test_what_may_lie_in_a_models_directory_hinders_nobody(model, tmp_path, capsys):
    """The model in its maker's format, an adapter, a pickle, what older releases saved, and defaults of no use."""
    save_file({"tok_embeddings.weight": np.zeros((4, 4), np.float32)}, model / "consolidated.safetensors")
    save_file({"lora_A": np.zeros((4, 4), np.float32)}, model / "adapter_model.safetensors")
    (model / "pytorch_model.bin").write_bytes(b"never read")
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(16, np.float32)}
    tensors(lambda arrays: arrays.update(old | {"lm_head.weight": arrays["model.embed_tokens.weight"]}))(model)
    (model / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6}')
    configured(auto_map={"AutoConfig": "code.Config"}, temperature=0.6)(model)
    code, said = dry_run(model, tmp_path / "runs", capsys)
    assert code == 0, said
