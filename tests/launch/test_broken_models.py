"""A model directory with something wrong in it is one paragraph that names the file, already in a dry run."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file

from launch import train
from tests.rl_system.chat.test_template import ALTERNATING, NEEDS_A_USER, NO_SYSTEM, ONE_RESULT, WITHOUT_TOOLS

CONFIG = Path(__file__).parents[2] / "configs" / "tau2_mock_cpu.yaml"
WEIGHTS = "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def model(chat_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(chat_model, tmp_path / "model"))


def dry_run(model: Path, output: Path, capsys) -> tuple[int, str]:
    arguments = ["--config", CONFIG, "--model.path", model, "--output", output, "--warm_start.enabled", "false"]
    arguments += ["--environment.processes", 0]
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


def edited(name: str, **values) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        path = model / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return spoil


def configured(**values) -> Callable[[Path], None]:
    return edited("config.json", **values)


def tensors(change: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        arrays = load_file(model / WEIGHTS)
        change(arrays)
        save_file(arrays, model / WEIGHTS, metadata={"format": "pt"})

    return spoil


def directory(name: str) -> Callable[[Path], None]:
    return lambda model: ((model / name).unlink(), (model / name).mkdir())


def link_to_nothing(name: str) -> Callable[[Path], None]:
    return lambda model: ((model / name).unlink(), (model / name).symlink_to("nowhere"))


def renamed(name: str, other: str) -> Callable[[Path], None]:
    return lambda model: (model / name).rename(model / other)


def of_eight_bits(model: Path) -> None:
    arrays = load_file(model / WEIGHTS)
    small = {name: torch.as_tensor(array).to(torch.float8_e4m3fn) for name, array in arrays.items()}
    save_torch_file(small, model / WEIGHTS, metadata={"format": "pt"})


def sharded(model: Path) -> None:
    """The parameters in two files with an index."""
    arrays = load_file(model / WEIGHTS)
    (model / WEIGHTS).unlink()
    files = {name: f"model-{1 + number % 2:05d}-of-00002.safetensors" for number, name in enumerate(sorted(arrays))}
    for file in set(files.values()):
        part = {name: array for name, array in arrays.items() if files[name] == file}
        save_file(part, model / file, metadata={"format": "pt"})
    (model / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))


INDEX = '{"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}'
BROKEN = {
    "parameters cut": (cut(WEIGHTS), f"{WEIGHTS} is not a whole safetensors file"),
    "parameters empty": (written(WEIGHTS, b""), f"{WEIGHTS} is not a whole safetensors file"),
    "parameters of a page that was not found": (
        written(WEIGHTS, b"<!DOCTYPE html><html>not found</html>"),
        f"{WEIGHTS} is not a whole safetensors file",
    ),
    "parameters with a header of no JSON": (
        written(WEIGHTS, (8).to_bytes(8, "little") + b"{{{{{{{{"),
        f"{WEIGHTS} is not a whole safetensors file",
    ),
    "parameters in a directory": (directory(WEIGHTS), f"{WEIGHTS} is a directory"),
    "parameters behind a link to nothing": (link_to_nothing(WEIGHTS), f"{WEIGHTS} is a link to a file that is not there"),
    "parameters missing": (without(WEIGHTS), f"holds neither {WEIGHTS} nor"),
    "parameters in a pickle alone": (renamed(WEIGHTS, "pytorch_model.bin"), "only pytorch_model.bin"),
    "an adapter alone": (
        lambda model: (renamed(WEIGHTS, "adapter_model.safetensors")(model), without("config.json")(model)),
        "holds no config.json",
    ),
    "parameters in whole numbers": (
        tensors(lambda arrays: arrays.update({name: each.astype(np.int8) for name, each in arrays.items()})),
        "as I8, which cannot be trained",
    ),
    "parameters of eight bits": (of_eight_bits, "as F8_E4M3, which cannot be trained"),
    "index cut": (written(f"{WEIGHTS}.index.json", INDEX[:30]), f"{WEIGHTS}.index.json is no index"),
    "index of absent files": (written(f"{WEIGHTS}.index.json", INDEX), "names model-00001-of-00002.safetensors, which"),
    "a parameter missing": (tensors(lambda arrays: arrays.pop("model.norm.weight")), "lacks 1 parameters"),
    "a parameter of another shape": (configured(vocab_size=100), "embed_tokens.weight has the shape [49152, 64]"),
    "a quantized model": (
        tensors(lambda arrays: arrays.update({"model.norm.weight_scale": np.ones(1, np.float32)})),
        "model.norm.weight_scale",
    ),
    "a quantized model by its configuration": (
        configured(quantization_config={"quant_method": "fp8"}),
        "the parameters are quantized (fp8)",
    ),
    "fewer layers than files have": (configured(num_hidden_layers=1), "9 tensors that its architecture has not"),
    "more layers than files have": (configured(num_hidden_layers=3), "lacks 9 parameters"),
    "the tokenizer of another model": (
        lambda model: (
            tensors(lambda arrays: arrays.update({EMBEDDING: arrays[EMBEDDING][:100]}))(model),
            configured(vocab_size=100)(model),
        ),
        "its tokenizer knows 49152 tokens, but the model's embedding only 100",
    ),
    "config cut": (cut("config.json"), "config.json cannot be read"),
    "config in a directory": (directory("config.json"), "holds no config.json"),
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
    "generation defaults that nothing takes": (
        written("generation_config.json", '{"num_beams": 0, "num_return_sequences": 7}'),
        "generation_config.json' holds no generation defaults that transformers takes",
    ),
    "generation defaults that end in a word": (
        written("generation_config.json", '{"eos_token_id": "</s>"}'),
        "generation_config.json names eos_token_id '</s>'",
    ),
    "generation defaults that end in a truth": (
        written("generation_config.json", '{"eos_token_id": [2, true]}'),
        "generation_config.json names eos_token_id [2, True]",
    ),
    "tokenizer in a directory": (directory("tokenizer.json"), "tokenizer.json cannot be read"),
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
    "template that takes no system prompt": (written("chat_template.jinja", NO_SYSTEM), "System role not supported"),
    "template of turns that alternate": (written("chat_template.jinja", ALTERNATING), "roles must alternate"),
    "template that takes one result": (written("chat_template.jinja", ONE_RESULT), "One result a turn"),
    "template of nothing": (written("chat_template.jinja", ""), "ends an assistant's turn by no special token"),
    "template without tools": (written("chat_template.jinja", WITHOUT_TOOLS), "does not show a dialogue's tools"),
    "template of bytes": (written("chat_template.jinja", b"\xff"), "tokenizer"),
    "a file in place of the directory": (
        lambda model: (shutil.rmtree(model), model.write_text("a model")),
        "neither a directory nor the name of a prepared model",
    ),
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
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/model", "peft_type": "LORA"}')
    (model / "consolidated.safetensors.index.json").write_text("{}")
    configured(auto_map={"AutoConfig": "code.Config"}, temperature=0.6, of_no_use={"to": ["anybody"]})(model)
    code, said = dry_run(model, tmp_path / "runs", capsys)
    assert code == 0, said


@pytest.mark.parametrize("beside", ["nothing", "the same in one file", "another model in one file", "a pickle"])
def test_a_model_in_several_files_is_what_its_index_says(beside, model, tmp_path, capsys):
    whole = (model / WEIGHTS).read_bytes()
    sharded(model)
    if beside == "the same in one file":
        (model / WEIGHTS).write_bytes(whole)
    elif beside == "another model in one file":
        save_file({"of.another": np.zeros(1, np.float32)}, model / WEIGHTS)
    elif beside == "a pickle":
        (model / "pytorch_model.bin").write_bytes(b"never read")
    code, said = dry_run(model, tmp_path / "runs", capsys)
    assert code == 0, said


@pytest.mark.parametrize(
    "spoil",
    [
        edited("tokenizer_config.json", eos_token=None),
        edited("tokenizer_config.json", eos_token="<|unheard_of|>"),
        without("tokenizer_config.json"),
        edited("config.json", eos_token_id=[2, 0]),
        edited("config.json", eos_token_id=None),
        edited("generation_config.json", eos_token_id=[2, 0, 999_999]),
        edited("generation_config.json", do_sample=False, temperature=0.6, top_p=0.9, top_k=20, of_no_use=1),
        tensors(lambda arrays: arrays.update({name: each.astype(np.float16) for name, each in arrays.items()})),
    ],
)
def test_files_that_state_an_end_or_defaults_in_any_way_will_do(spoil, model, tmp_path, capsys):
    spoil(model)
    code, said = dry_run(model, tmp_path / "runs", capsys)
    assert code == 0, said


@pytest.mark.parametrize("name", ["", "config.json", WEIGHTS, "tokenizer.json", "generation_config.json"])
def test_a_file_that_may_not_be_read_is_named(name, model, tmp_path, capsys):
    (model / name).chmod(0)
    if os.access(model / name, os.R_OK):
        pytest.skip("whoever runs this may read everything")
    try:
        code, said = dry_run(model, tmp_path / "runs", capsys)
    finally:
        (model / name).chmod(0o700)
    assert code == 2 and "Traceback" not in said, said
    assert str(model / name) in said and "ermission" in said
