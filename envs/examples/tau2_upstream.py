"""τ²-bench's own agents and orchestrator, unchanged, on its mock domain: `LLMSoloAgent` alone, or `LLMAgent` with a user.

Upstream calls the model through litellm, which is told the endpoint's address and key and nothing else. A split is one of
the mock domain, played alone; `train+user` is `train` with the scripted user of `envs.tau2`.

Prompts, samples and rewards are those of `environment.name: tau2`, which plays the same tasks without upstream's loop. What
differs: upstream ends an episode for words where only calls are read, asks again for an answer that was empty, goes on
after a call in a response that was cut off, and cuts no results; its limit of wrong calls is `MAX_ERRORS`; and an episode
counts as ended by itself whatever its orchestrator ended it for.
"""

from __future__ import annotations

from typing import Any

from envs.agents import Endpoint
from envs.tau2.domains import DOMAINS, playable_alone
from envs.tau2.upstream import (
    DummyUser,
    EvaluationType,
    LLMAgent,
    LLMSoloAgent,
    Orchestrator,
    UpstreamMessage,
    UpstreamTask,
    UserMessage,
    UserSimulator,
    World,
    evaluate_simulation,
)
from envs.tau2.users import ScriptedUser
from rl_system.errors import UserError

MOCK = DOMAINS["mock"]
WITH_USER = "+user"
MAX_STEPS, MAX_ERRORS = 60, 5
WRONG_FORM = ("LLMSoloAgent only supports tool calls", "AssistantMessage must have either content or tool calls")
"""How the errors begin that upstream raises for what a model wrote: such an episode is worth nothing, and no agent is at fault."""


def tasks(split: str) -> list[dict]:
    name, alone = split.removesuffix(WITH_USER), not split.endswith(WITH_USER)
    known = MOCK.splits()
    if name not in known:
        raise UserError(f"split {split!r} does not exist; use one of {', '.join(known)}, with or without {WITH_USER!r}")
    return [{"id": each, "alone": alone} for each in known[name] if not alone or playable_alone(MOCK.task(each))]


def run(task: dict, model: Endpoint) -> float:
    upstream, alone = MOCK.task(task["id"]), task["alone"]
    world = MOCK.build(solo=alone)
    # Forcing a call, which the agent that is alone asks for, would change what is sampled: that is not sent.
    arguments = {"api_base": model.base_url, "api_key": model.api_key, "additional_drop_params": ["tool_choice"]}
    client: dict[str, Any] = {"llm": f"openai/{model.name}", "llm_args": arguments}
    if alone:
        agent = LLMSoloAgent(tools=world.get_tools(), domain_policy=world.get_policy(), task=upstream, **client)
        user = DummyUser()
    else:
        agent = LLMAgent(tools=world.get_tools(), domain_policy=world.get_policy(), **client)
        user = ScriptedSimulator(upstream, world)
    orchestrator = Orchestrator(
        MOCK.name, agent, user, world, upstream, max_steps=MAX_STEPS, max_errors=MAX_ERRORS, solo_mode=alone
    )
    try:
        simulation = orchestrator.run()
    except ValueError as error:
        if not str(error).startswith(WRONG_FORM):
            raise
        return 0.0
    return evaluate_simulation(simulation, upstream, EvaluationType.ALL, alone, MOCK.name).reward


class ScriptedSimulator(UserSimulator):
    """The scripted user where upstream expects a model that plays one."""

    def __init__(self, task: UpstreamTask, world: World) -> None:
        super().__init__(instructions=str(task.user_scenario))
        self._user, self._task, self._world = ScriptedUser(), task, world

    def get_init_state(self, message_history: list[UpstreamMessage] | None = None) -> Any:
        self._user.open(self._task, self._world, message_history or [])
        return super().get_init_state(message_history)

    def generate_next_message(self, message: Any, state: Any) -> tuple[UserMessage, Any]:
        answered = [message] if message.role == "tool" else message
        return self._user.reply(getattr(message, "tool_messages", answered)), state
