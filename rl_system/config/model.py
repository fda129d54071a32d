from typing import Literal

from pydantic import Field

from rl_system.config.paths import FilePath, ModelPlace
from rl_system.config.section import Section


class ModelConfig(Section):
    path: ModelPlace = "smollm2-135m-instruct"
    """A Hugging Face model directory, the name of a model that `launch/setup.sh` prepares, or `owner/name` of one that is
    in the Hugging Face cache (`hf download owner/name`). A directory is absolute after loading, a name stays one."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Compute dtype. Master weights, gradients and optimizer states are float32 (float64 for float64)."""
    max_model_len: int = Field(2048, ge=16)
    """Longest sequence in tokens, prompt and responses together."""
    chat_template: FilePath | None = None
    """A Jinja file in place of the model's own template; absolute after loading."""
    tool_format: Literal["hermes", "qwen3", "llama3", "json"] = "hermes"
    """How the model writes tool calls."""
    device: Literal["cpu", "cuda"] = "cpu"
