"""Every ready configuration passes a dry run: whole where its model is, and elsewhere saying what it did not check."""

import shutil
from pathlib import Path

import pytest
import yaml

from envs.registry import is_agent
from launch import train
from rl_system.config.load import load_config

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
GPU_CONFIGS = [path for path in CONFIGS if "qwen3" in path.name]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    """An empty Hugging Face cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put_into(cache: Path, name: str, model: Path) -> Path:
    """Lay `model` out as a download of the Hub's `name` would."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    return Path(shutil.copytree(model, folder / "snapshots" / ("0" * 40)))


def dry_run(capsys, config: Path, *overrides: object) -> tuple[dict, list[str], list[str]]:
    """The configuration that was printed, what was found, and what is said not to have been checked."""
    code = train.main(["--config", str(config), "--dry-run", *map(str, overrides)])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    comments = [line.removeprefix("# ") for line in out.splitlines() if line.startswith("# ")]
    unchecked = [line.partition(": ")[2] for line in comments if line.startswith("not checked here: ")]
    return yaml.safe_load(out), comments, unchecked


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_configuration_carries_the_name_of_its_file(path):
    assert load_config(path).name == path.stem


@pytest.mark.parametrize("path", GPU_CONFIGS, ids=lambda path: path.stem)
def test_without_gpu_and_model_a_dry_run_checks_the_rest_and_says_what_it_could_not(path, capsys, tmp_path):
    config = load_config(path)
    printed, found, unchecked = dry_run(capsys, path, "--output", tmp_path)
    assert printed["allocation"]["rollout"] == config.allocation.rollout
    assert any(line.startswith("tasks: ") for line in found)
    assert sum("rollout worker" in line for line in found) == config.allocation.rollout
    assert f"the Ray cluster has {config.allocation.accelerators} GPU" in unchecked[0]
    assert config.model.path in unchecked[-1] and f"hf download {config.model.path}" in unchecked[-1]
    assert ("environment.user.api_base" in "".join(unchecked)) == (config.environment.user.kind == "llm")


@pytest.mark.parametrize("path", GPU_CONFIGS, ids=lambda path: path.stem)
def test_what_can_be_checked_without_the_model_is_still_refused(path, capsys, tmp_path):
    for words, named in [
        (["--environment.split", "trian"], "'trian'"),
        (["--environment.domain", "hotel"], "'hotel'"),
        (["--rollout.groupsize", "4"], "rollout.group_size"),
        (["--rollout.sampling.max_new_tokens", "40000"], "rollout.sampling.max_new_tokens"),
        (["--model.path", "/no/such/model"], "/no/such/model"),
    ]:
        arguments = ["--config", str(path), "--output", str(tmp_path), "--dry-run", *words]
        assert train.main(arguments) == 2
        assert named in capsys.readouterr().err


def test_a_real_run_without_its_model_is_refused_before_anything_starts(capsys, tmp_path):
    path = next(path for path in GPU_CONFIGS if "solo" in path.name)
    assert train.main(["--config", str(path), "--output", str(tmp_path)]) == 2
    assert "hf download Qwen/Qwen3-8B" in capsys.readouterr().err


def test_a_real_run_whose_user_does_not_answer_is_refused_before_anything_starts(capsys, tmp_path):
    path = next(path for path in GPU_CONFIGS if "airline" in path.name)
    nowhere = ["--environment.user.api_base", "http://127.0.0.1:9/v1"]
    assert train.main(["--config", str(path), "--output", str(tmp_path), *nowhere]) == 2
    err = capsys.readouterr().err
    assert "environment.user.api_base" in err and "127.0.0.1:9" in err and err.count("\n") == 1


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_with_the_model_at_hand_a_dry_run_looks_at_it(path, capsys, tmp_path, cache, chat_model):
    """A tiny model stands in for the real one, with the context that it has and the domain whose prompts fit it. What an agent
    asks the model is known when it runs, and a dry run says so."""
    config = load_config(path)
    agent = is_agent(config.environment)
    overrides = ["--output", tmp_path, "--environment.domain", "mock", "--model.max_model_len", 1536]
    overrides += ["--rollout.sampling.max_new_tokens", 96, "--environment.user.kind", "solo"]
    if "/" in config.model.path:
        directory = put_into(cache, config.model.path, chat_model)
    else:
        directory = chat_model
        overrides += ["--model.path", chat_model, "--warm_start.enabled", "false"]
    _, found, unchecked = dry_run(capsys, path, *overrides)
    assert f"model directory: {directory}" in found
    assert any(line.startswith("first prompt: up to") for line in found) is not agent
    assert any(line.startswith("memory of this machine: about") for line in found)
    assert len(unchecked) == 1 + agent + (config.model.device == "cuda")
    if config.model.device == "cuda":  # whose nodes nobody knows before they are reserved
        assert any(f"one with all {config.allocation.accelerators} needs about" in line for line in unchecked)
        assert any(line.startswith("attention on GPUs, as of this environment: ") for line in found)


def test_a_model_of_which_a_part_is_missing_is_not_taken_for_whole(capsys, tmp_path, cache, chat_model):
    path = next(path for path in GPU_CONFIGS if "solo" in path.name)
    directory = put_into(cache, "Qwen/Qwen3-8B", chat_model)
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    _, _, unchecked = dry_run(capsys, path, "--output", tmp_path)
    assert "model-00001-of-00002.safetensors is missing" in unchecked[-1]
