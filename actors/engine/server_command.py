"""How vLLM's own OpenAI-compatible server is started for a model, told what the system knows of it."""

from __future__ import annotations

import os
import sys

from rl_system.config.model import ModelConfig

CPU_CACHE_BYTES = 1 << 30
"""K/V cache on CPU, of a few dialogues of some thousand tokens."""
TOOL_PARSERS = {"hermes": "hermes", "qwen3": "hermes", "llama3": "llama3_json"}
"""vLLM's names by `model.tool_format`; it has none for calls that are mere JSON."""


def server_command(model: ModelConfig, files: list[str], *, name: str, host: str, port: int) -> list[str]:
    """files: the arguments that name the model's files, see `serving_arguments`. name: what clients call it."""
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", *files,
        "--served-model-name", name, "--host", host, "--port", str(port),
        "--dtype", model.dtype, "--max-model-len", str(model.max_model_len),
    ]  # fmt: skip
    if parser := TOOL_PARSERS.get(model.tool_format):
        command += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    if model.device == "cpu":
        command += ["--enforce-eager", "--kv-cache-memory-bytes", str(CPU_CACHE_BYTES)]
    return command


def server_variables(device: str) -> dict[str, str]:
    """Of the server's process, beside those of this one."""
    given = {"VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return given | ({"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} if device == "cpu" else {})
