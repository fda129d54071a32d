"""The scheduler's own view of its queues, kept for whoever asks next."""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats


class SchedulerGauge(StatLoggerBase):
    """What the scheduler reported with its latest step: nothing is reported while the engine is idle."""

    def __init__(self) -> None:
        self.latest = SchedulerStats()

    def __call__(self, vllm_config: VllmConfig, engine_index: int = 0) -> SchedulerGauge:
        """vLLM asks for a factory, one gauge an engine; this worker has one engine."""
        return self

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            self.latest = scheduler_stats

    def log_engine_initialized(self) -> None:
        """Nothing to print."""

    def report(self, requests: int) -> dict[str, float]:
        """Running and waiting requests and the used share of the K/V cache; `requests` are in the engine now."""
        running = min(self.latest.num_running_reqs, requests)
        return {
            "running": running,
            "waiting": requests - running,
            "kv_cache_usage": self.latest.kv_cache_usage if requests else 0.0,
        }
