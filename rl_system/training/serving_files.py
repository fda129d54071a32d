"""What a server of vLLM needs beside a model's directory to serve the model as the rest of the system understands it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_system.config.model import ModelConfig
from rl_system.training.architecture import GENERATION_FILE
from rl_system.training.json_object import read_object
from rl_system.training.loading import load_tokenizer
from rl_system.training.model_files import save_generation_defaults
from rl_system.training.parameter_files import only_parameter_files
from rl_system.training.prepared import model_directory

TEMPLATE_FILE = "chat_template.jinja"


@contextmanager
def serving_arguments(config: ModelConfig) -> Iterator[list[str]]:
    """Arguments of the server that name the model's files, its chat template, and where its turns end.

    The files are there until the block is left. Raises UserError for a model that has not got them.
    """
    directory, tokenizer = model_directory(config.path), load_tokenizer(config)
    with tempfile.TemporaryDirectory(prefix="serving-") as folder, only_parameter_files(directory) as model:
        template = Path(folder) / TEMPLATE_FILE
        template.write_text(tokenizer.get_chat_template(tools=[]), encoding="utf-8")
        save_generation_defaults(read_object(directory / GENERATION_FILE), tokenizer, Path(folder))
        yield ["--model", str(model), "--chat-template", str(template), "--generation-config", folder]
