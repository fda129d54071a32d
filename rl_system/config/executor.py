from typing import Literal

from pydantic import Field

from rl_system.config.section import Section


class ExecutorConfig(Section):
    method: Literal["auto", "tree", "dense", "dense_ckpt", "leaves", "packed"] = "auto"
    block_tokens: int = Field(4096, ge=0)
    """Most tokens in one block of the tree; 0: no limit. `auto` chooses among sizes up to this one."""
    retain_tokens: int = Field(0, ge=0)
    """Tokens whose graph may be kept beside the running block, so that they need not be run twice."""
    head_chunk: int = Field(1024, ge=1)
    """Rows of the output head computed at once."""
