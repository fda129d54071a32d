from typing import Literal

from pydantic import Field

from rl_system.config.section import Section


class EndpointConfig(Section):
    """Where agents that bring their own loop call the model."""

    processes: int = Field(1, ge=1)
    """Server processes; episodes are spread over them. One serves some hundred calls a second."""
    host: str = "127.0.0.1"
    """Address to listen on. Agents run on the same machine, so that none but loopback is needed."""
    model: str = Field("policy", min_length=1)
    """The model's name, by which agents ask for it. For an agent that insists on some model: the name of that one."""
    other_temperature: Literal["refuse", "replace"] = "refuse"
    """What becomes of a call that asks for another temperature than rollout.sampling.temperature: an error, or a turn at the
    run's temperature, counted as `replaced_temperatures`."""
    max_request_mib: float = Field(8.0, gt=0)
    """Largest request."""
