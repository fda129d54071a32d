"""Token ids that end a response.

The engine runs without a tokenizer and without the model's generation defaults, so it has to be told.
"""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoTokenizer


def stop_token_ids(model_directory: Path) -> list[int]:
    """Whatever the model's configuration files or its tokenizer call end of sequence or of turn, sorted."""
    found: set[int | None] = set()
    for name in ("generation_config.json", "config.json"):
        path = model_directory / name
        if path.exists():
            ids = json.loads(path.read_text()).get("eos_token_id")
            found |= set(ids) if isinstance(ids, list) else {ids}
    if (model_directory / "tokenizer_config.json").exists():
        found.add(AutoTokenizer.from_pretrained(model_directory).eos_token_id)
    return sorted(token for token in found if token is not None)
