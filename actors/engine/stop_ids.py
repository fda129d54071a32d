"""Token ids that end a response.

The engine runs without a tokenizer and without the model's generation defaults, so it has to be told.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from rl_system.config.model import ModelConfig
from rl_system.training.architecture import eos_ids
from rl_system.training.loading import TOKENIZER_FILES, load_renderer


def stop_token_ids(model_directory: Path, model: ModelConfig | None = None) -> list[int]:
    """Whatever the model's configuration files, its tokenizer or its chat template call an end, sorted.

    model: as configured, so that the template is the one that the agent loop uses; None: no template is asked. Without a
    tokenizer it is what the configuration files say. Raises UserError for a template that ends no turn.
    """
    found = eos_ids(model_directory)
    if any((model_directory / file).exists() for file in TOKENIZER_FILES):
        if model is None:
            found |= {AutoTokenizer.from_pretrained(model_directory).eos_token_id} - {None}
        else:
            found |= load_renderer(model.model_copy(update={"path": str(model_directory)})).stop_ids
    return sorted(found)
