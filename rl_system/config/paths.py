"""Paths of a configuration: `~` is the home directory, and what is relative belongs to the working directory of the command
that loads it, whether it was given in a file or on the command line. After loading every path is absolute, because actors
work in other directories, perhaps on other nodes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator


def absolute(path: str | Path) -> Path:
    """`path` with `~` expanded, below the working directory where it is relative. ValueError where it can be none."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise ValueError("expected a path" + (" without the character NUL" if text else ", which is never empty"))
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"expected a path; {Path(text).parts[0]} is the home directory of nobody here") from None


def model_place(name: str) -> str:
    """A model's directory as an absolute path; the name of a model (`smollm2-135m-instruct`, `owner/name`) as it is.

    What begins with `/`, `~` or `.`, has more than one slash, or is there below the working directory, is a directory.
    """
    if not name:
        raise ValueError("expected a model, and its name is empty")
    unusual = name.startswith(("/", "~", ".")) or name.count("/") > 1 or name.endswith("/") or "\0" in name
    is_path = unusual or os.path.exists(name)
    return str(absolute(name)) if is_path else name


FilePath = Annotated[str, AfterValidator(lambda text: str(absolute(text)))]
"""Of a file, as text."""
ModelPlace = Annotated[str, AfterValidator(model_place)]
"""Of a model: a directory, or a name."""
