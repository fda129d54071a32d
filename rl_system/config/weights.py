from typing import Literal

from pydantic import Field

from rl_system.config.section import Section


class WeightsConfig(Section):
    """How new parameters reach the rollout workers."""

    transport: Literal["object_store", "directory", "nccl", "gloo"] = "object_store"
    """object_store: chunks, of which a worker fetches those that changed; one copy a node. directory: a model directory in
    the run's, always whole, on a file system that all nodes see. nccl: broadcast from GPU to GPU through vLLM's own weight
    transfer, always of everything; the trainer waits for it. gloo: the same between CPUs, to try it without a GPU. A
    worker that is lost during a broadcast is replaced and the broadcast made again."""
    chunk_mib: int = Field(256, ge=1)
    """Of one chunk, unless one decoder layer is larger: layers are not cut, since engines fuse their parameters."""
    verify: bool = True
    """Compare a checksum of what arrived with that of what was sent (object_store)."""
    timeout_s: float = Field(300.0, gt=0)
