"""Models of the Hugging Face Hub, as far as this machine's cache holds them. Nothing is downloaded here."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from rl_system.errors import UserError
from rl_system.training.parameter_files import named_files

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class ModelNotCached(UserError):
    """The model is named as on the Hub, and this machine has not got it: no mistake where it runs elsewhere."""


def is_hub_name(path: str) -> bool:
    """Whether `path` reads `owner/name` and no directory is meant."""
    return HUB_NAME.fullmatch(path) is not None and not Path(path).exists()


def cached_model(name: str) -> Path:
    """The directory of the Hub's model `name` in this machine's cache. Raises ModelNotCached unless it is there whole."""
    fetch = f"fetch it on every machine that runs it: hf download {name}"
    try:
        directory = Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        raise ModelNotCached(
            f"model.path {name!r} is not a directory, and this machine's Hugging Face cache has no model of that name; "
            + fetch
        ) from None
    missing = [file for file in [directory / "config.json", *named_files(directory)] if not file.is_file()]
    if missing:
        raise ModelNotCached(
            f"model.path {name!r} is not whole in this machine's Hugging Face cache ({missing[0].name} is missing); "
            f"{fetch}"
        )
    return directory
