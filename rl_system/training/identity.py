"""What a run's model and chat template are, whatever they are called and wherever they lie.

A fingerprint of gigabytes is taken in milliseconds: texts are read whole, of parameters the size, the header with names and
shapes, and stretches spread over the whole file. A model that was trained at all differs nearly everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from rl_system.config.run import RunConfig
from rl_system.errors import UserError
from rl_system.training.parameter_files import parameter_files
from rl_system.training.prepared import model_directory

TEXT_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
WHOLE_BYTES = 1 << 20
"""Read of the beginning of a file with parameters; beyond it, stretches."""
STRETCHES = 64
STRETCH_BYTES = 1 << 14


def contents(config: RunConfig) -> dict[str, str | None]:
    """Fingerprints by the keys of the configuration whose contents count, not their spelling; None: not set.

    UserError where the model or the template is not there.
    """
    return {
        "model.path": model_fingerprint(model_directory(config.model.path)),
        "model.chat_template": _template_fingerprint(config.model.chat_template),
    }


def model_fingerprint(directory: Path) -> str:
    """Sixteen hexadecimal digits of the model in `directory`: architecture, tokenizer and parameters."""
    digest = hashlib.sha256()
    for path in (directory / name for name in TEXT_FILES):
        if path.is_file():
            digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    for path in parameter_files(directory):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        for stretch in _stretches(path):
            digest.update(stretch)
    return digest.hexdigest()[:16]


def _stretches(path: Path) -> Iterator[bytes]:
    """All of a small file, in order; of a large one the beginning and what is spread evenly over the rest."""
    size = path.stat().st_size
    with path.open("rb") as file:
        yield file.read(WHOLE_BYTES)
        for index in range(STRETCHES if size > WHOLE_BYTES else 0):
            file.seek((size - STRETCH_BYTES) * index // (STRETCHES - 1))
            yield file.read(STRETCH_BYTES)


def _template_fingerprint(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise UserError(f"model.chat_template {path!r} cannot be read: {error.strerror}") from None
