from typing import Literal

from pydantic import Field

from rl_system.config.section import Section


class UserConfig(Section):
    """Who plays the user."""

    kind: Literal["solo", "scripted", "llm"] = "solo"
    model: str | None = None
    """Model name at `api_base`, or a model directory that the run serves itself."""
    api_base: str | None = None
    max_concurrency: int = Field(32, ge=1)
    timeout_s: float = Field(60.0, gt=0)
    retries: int = Field(3, ge=0)


class EnvironmentConfig(Section):
    name: str = "tau2"
    domain: str = "mock"
    split: str = "train"
    user: UserConfig = UserConfig()
    concurrency: int = Field(32, ge=1)
    """Episodes that run at once."""
    start_timeout_s: float = Field(120.0, gt=0)
    """Longest start of a worker process, imports included."""
    processes: int = Field(1, ge=0)
    """Worker processes that step environments. 0: threads of the pool's own process, for environments that are cheap and
    cannot hang."""
    max_turns: int = Field(12, ge=1)
    """Calls of the sampler in one episode."""
    max_errors: int = Field(5, ge=1)
    """Tool errors after which an episode ends."""
    max_observation_tokens: int = Field(1024, ge=16)
    """Longer tool results are cut, with a note to the agent."""
    step_timeout_s: float = Field(60.0, gt=0)
    """Longest environment step; an environment that takes longer is abandoned."""
    episode_timeout_s: float = Field(600.0, gt=0)
