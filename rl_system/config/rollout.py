from pydantic import Field

from rl_system.config.section import Section


class SamplingConfig(Section):
    temperature: float = Field(1.0, ge=0.0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    """0: full support."""
    max_new_tokens: int = Field(256, ge=1)
    """Of one turn."""


class EngineConfig(Section):
    """vLLM."""

    max_num_seqs: int = Field(64, ge=1)
    kv_cache_gib: float | None = Field(1.0, gt=0)
    """Size of the K/V cache; None: what `gpu_memory_utilization` leaves (CUDA)."""
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    enforce_eager: bool = True
    threads: int = Field(1, ge=1)
    """CPU threads of one engine."""
    tensor_parallel: int = Field(1, ge=1)
    """Accelerators of one engine. A rollout worker has one, so a run takes only 1."""


class RolloutConfig(Section):
    group_size: int = Field(8, ge=1)
    """Episodes of one task that are compared with each other."""
    over_sample: int = Field(0, ge=0)
    """Episodes that a group starts beyond `group_size`. The first `group_size` to finish make the group, the others are
    cancelled: no group waits for its slowest members, but long episodes are seen less often than they occur. 0: every
    episode that is started counts."""
    groups_per_batch: int = Field(4, ge=1)
    """Groups that one policy update trains on."""
    max_staleness: int = Field(2, ge=0)
    """Policy updates that may lie between sampling a token and training on it. 0: strictly on-policy."""
    max_episode_tokens: int = Field(2048, ge=1)
    """Sampled tokens of one episode."""
    request_timeout_s: float = Field(300.0, gt=0)
    """Longest that an engine may work on one turn, from its first token on; waiting in the engine's queue does not count. One
    that takes longer is taken out and goes on from its tokens, on another worker where there is one; after three times its
    episode fails. The worker stays: whether it lives is judged by its heartbeat."""
    max_drops_in_a_row: int = Field(200, ge=1)
    """Groups that may be dropped in a row (no signal, or failed) before the run gives up."""
    stall_timeout_s: float = Field(3600.0, gt=0)
    """Longest that no group is started, finished or dropped while a batch is waited for; then the run ends. Longer than one
    group may take by its own budgets."""
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()

    @property
    def episodes_per_group(self) -> int:
        """Episodes that a group starts."""
        return self.group_size + self.over_sample
