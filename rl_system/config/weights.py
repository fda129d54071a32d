from typing import Literal

from pydantic import Field

from rl_system.config.section import Section


class WeightsConfig(Section):
    """How new parameters reach the rollout workers."""

    transport: Literal["object_store", "directory", "nccl"] = "object_store"
    chunk_mib: int = Field(256, ge=1)
    verify: bool = True
    """Compare a checksum of what arrived with that of what was sent."""
    timeout_s: float = Field(300.0, gt=0)
