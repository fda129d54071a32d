from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rl_system.config.curriculum import CurriculumConfig
from rl_system.config.endpoint import EndpointConfig
from rl_system.config.paths import model_place
from rl_system.config.section import Section
from rl_system.config.written import is_nothing

TAU2 = "tau2"


def label_of(name: str, domain: str | None) -> str:
    """τ²-bench is told by its domain too. What a domain means elsewhere, if anything, is the environment's affair."""
    return f"{name} {domain}" if name == TAU2 and domain else name


class UserConfig(Section):
    """Who plays the user."""

    kind: Literal["solo", "scripted", "llm"] = "solo"
    api_base: str | None = None
    """Address of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1."""
    model: str | None = None
    """The model's name at `api_base`; without `api_base` a model directory, or the name of a prepared model, to be
    served on this machine. Such a directory is absolute after loading."""
    temperature: float = Field(0.0, ge=0)
    max_tokens: int = Field(512, ge=1)
    """Of one message of the user."""
    max_concurrency: int = Field(32, ge=1)
    """Requests to the user's model at once, over all worker processes."""
    timeout_s: float = Field(60.0, gt=0)
    """Longest that one request may take."""
    retries: int = Field(3, ge=0)
    """Requests that are made again for one message, when they fail, take too long or bring nothing that can be used."""
    reply_timeout_s: float = Field(600.0, gt=0)
    """Longest that the user may take to answer the agent: for all its messages of one step, tools of its own and their
    results included, with retries and with waiting while others make the `max_concurrency` requests."""

    @field_validator("model")
    @classmethod
    def a_model_to_be_served_here_is_a_place(cls, model: str | None, info: ValidationInfo) -> str | None:
        served_here = info.data.get("kind") == "llm" and info.data.get("api_base") is None
        return model_place(model) if model and served_here else model

    @model_validator(mode="after")
    def a_model_plays_the_user(self) -> "UserConfig":
        if self.kind == "llm" and self.model is None:
            raise ValueError(
                "environment.user.kind is 'llm', but environment.user.model is missing; give the model's name at "
                "environment.user.api_base, or a model directory to serve here"
            )
        if self.api_base is not None and not self.api_base.startswith(("http://", "https://")):
            raise ValueError(
                f"environment.user.api_base is {self.api_base!r}, which is no address; give one such as "
                "http://127.0.0.1:8000/v1"
            )
        return self


class EnvironmentConfig(Section):
    name: str = TAU2
    domain: str | None = None
    """Of environments that have several. None: `mock` of τ²-bench; others know their own."""
    split: str = "train"
    shuffle_window: int | None = Field(None, ge=1)
    """Consecutive tasks of the split that stay together when tasks are shuffled; None: the whole split."""
    curriculum: CurriculumConfig = CurriculumConfig()
    user: UserConfig = UserConfig()
    endpoint: EndpointConfig = EndpointConfig()
    """Only for agents that call the model themselves."""
    concurrency: int = Field(32, ge=1)
    """Episodes that run at once."""
    start_timeout_s: float = Field(120.0, gt=0)
    """Longest start of a worker process, imports included."""
    processes: int = Field(1, ge=0)
    """Worker processes that step environments. 0: threads of the pool's own process, for environments that are cheap
    and cannot hang."""
    max_turns: int = Field(12, ge=1)
    """Calls of the sampler in one episode."""
    max_errors: int = Field(5, ge=1)
    """Tool errors after which an episode ends."""
    max_observation_tokens: int = Field(1024, ge=16)
    """Longer tool results are cut, with a note to the agent."""
    step_timeout_s: float = Field(60.0, gt=0)
    """Longest environment step, without what a model that plays the user may take; an environment that takes longer is
    abandoned."""
    episode_timeout_s: float = Field(600.0, gt=0)
    """Longest episode, before it is scored; one that takes longer ends as `timeout`."""

    @property
    def label(self) -> str:
        """What people call it: `tau2 telecom`, `examples.guessing`."""
        return label_of(self.name, self.domain)

    @property
    def call_timeout_s(self) -> float:
        """Longest that a call of an environment may take, with what its user's model may take to answer."""
        return self.step_timeout_s + (self.user.reply_timeout_s if self.user.kind == "llm" else 0.0)

    @model_validator(mode="before")
    @classmethod
    def the_first_domain_is_the_smallest(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name", TAU2) == TAU2 and is_nothing(values.get("domain")):
            return values | {"domain": "mock"}
        return values

    @field_validator("name")
    @classmethod
    def a_file_is_called_by_its_module(cls, name: str) -> str:
        if not name.endswith(".py"):
            return name
        path, here = Path(name).expanduser(), Path.cwd()
        path = path.relative_to(here) if path.is_relative_to(here) else path
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"environment.name is {name!r}, a file outside of the folder where the command is started; start it in the "
                f"file's folder, or name that in PYTHONPATH and give the module's name {path.stem!r}"
            )
        return ".".join(path.with_suffix("").parts)

    @model_validator(mode="after")
    def every_process_may_ask_the_users_model(self) -> "EnvironmentConfig":
        if self.user.kind == "llm" and self.user.max_concurrency < self.processes:
            raise ValueError(
                f"environment.user.max_concurrency is {self.user.max_concurrency}, fewer than the "
                f"{self.processes} of environment.processes, which share it: some could never ask; use at least one each"
            )
        return self

    @model_validator(mode="after")
    def a_curriculum_has_no_epochs(self) -> "EnvironmentConfig":
        if self.curriculum.enabled and self.shuffle_window is not None:
            raise ValueError(
                f"environment.shuffle_window is {self.shuffle_window}, but environment.curriculum.enabled draws tasks "
                "one by one and shuffles none; set shuffle_window to null, or leave the curriculum off"
            )
        return self
