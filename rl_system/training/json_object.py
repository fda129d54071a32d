"""JSON files of a model directory, which other people and other programs wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_system.errors import UserError


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model; empty where there is no such file. Raises UserError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"model.path {path} cannot be read ({error}); fetch or save the model again") from None
    if not isinstance(content, dict):
        raise UserError(f"model.path {path} holds no JSON object; fetch or save the model again")
    return content
