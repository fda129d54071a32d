"""One τ²-bench episode behind the environment protocol: upstream's orchestrator, without its agent and its loop.

Prompts, policies, tool schemas, the order of speakers and the rules for ending are upstream's. Two differences, both
because a model that is being trained does what an API would not let it do: a message that upstream would abort the run
for (no words and no call, or words where nobody listens) is answered by an error that the agent can read, and counted.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from envs.protocol import Action, Message, Observation, Score, ToolCall
from envs.tau2.domains import Domain
from envs.tau2.scoring import score_episode, set_initial_state
from envs.tau2.upstream import (
    AGENT_INSTRUCTION,
    AGENT_SOLO_INSTRUCTION,
    DEFAULT_FIRST_AGENT_MESSAGE,
    SYSTEM_PROMPT,
    SYSTEM_PROMPT_SOLO,
    AssistantMessage,
    GoldAction,
    LLMSoloAgent,
    ToolMessage,
    UpstreamMessage,
    UpstreamTask,
    UpstreamToolCall,
    UserMessage,
)
from envs.tau2.users import User, ends_dialogue
from rl_system.records import Ending

MAX_USER_CALLS = 20
"""Rounds of tool calls that a user may make before it must speak; a simulator can loop."""


class Tau2Environment:
    """user: None in solo mode. Protocol and threading rules as in `envs.protocol.Environment`."""

    def __init__(self, domain: Domain, task: UpstreamTask, user: User | None) -> None:
        self._domain = domain
        self._task = task
        self._user = user
        self._trajectory: list[UpstreamMessage] = []
        self._unseen: list[Message] = []
        self._ended: Ending | None = None
        self._errors = 0
        self._calls = 0

    @property
    def solo(self) -> bool:
        return self._user is None

    def reset(self) -> None:
        self._world = self._domain.build(self.solo)
        set_initial_state(self._world, self._task)
        self._unseen = [{"role": "system", "content": self._system_prompt()}]
        history = copy.deepcopy((self._task.initial_state and self._task.initial_state.message_history) or [])
        if not history and not self.solo:
            history = [copy.deepcopy(DEFAULT_FIRST_AGENT_MESSAGE)]
        for message in history:
            self._record(message)
        if self._user is not None:
            self._user.open(self._task, self._world, history[:-1])
            last = history[-1]
            if isinstance(last, AssistantMessage) and not last.is_tool_call():
                self._let_user_answer(last)

    def tools(self) -> list[dict[str, Any]]:
        return self._domain.tool_schemas(self.solo)

    def observe(self) -> Observation:
        observation = Observation(self._unseen, self._ended, self._errors)
        self._unseen, self._errors = [], 0
        return observation

    def step(self, action: Action) -> None:
        if self._ended is not None:
            raise RuntimeError("step after the episode ended")
        if self.solo and any(call.name == LLMSoloAgent.STOP_FUNCTION_NAME for call in action.tool_calls):
            # Upstream: a stop among other calls stops at once, and the others are not carried out.
            self._trajectory.append(AssistantMessage(role="assistant", content=LLMSoloAgent.STOP_TOKEN))
            self._ended = Ending.AGENT_STOP
        elif action.tool_calls:
            calls = [self._numbered(call) for call in action.tool_calls]
            self._trajectory.append(AssistantMessage(role="assistant", content=action.text or None, tool_calls=calls))
            results = self._carry_out(calls)
            self._errors += sum(result.error for result in results)
            for result in results:
                self._record(result)
        elif self.solo:
            self._refuse("Error: nobody reads your messages. Call a tool, or `done` when the ticket is solved.")
        elif not action.text.strip():
            self._refuse("Error: your message was empty. Write to the user or call a tool.")
        else:
            message = AssistantMessage(role="assistant", content=action.text)
            self._trajectory.append(message)
            self._let_user_answer(message)

    def score(self, ended: Ending) -> Score:
        score = score_episode(self._domain.name, self._task, self._world, self._trajectory, ended)
        return replace(score, counts=score.counts | dict(self._user.counts if self._user else {}))

    def demonstration(self) -> list[Action]:
        """The gold actions; in a dialogue also the words that ask the user for its part, tell what must be told, and
        end."""
        criteria = self._task.evaluation_criteria
        gold = (criteria.actions if criteria else None) or []
        if self.solo:
            finish = ToolCall(LLMSoloAgent.STOP_FUNCTION_NAME, {})
            return [*(_gold_call(action) for action in gold), Action(tool_calls=(finish,))]
        told = "".join(f" {info}." for info in (criteria.communicate_info if criteria else None) or [])
        farewell = Action(text=f"Your request is taken care of.{told} Goodbye.")
        steps = (_gold_call(action) if action.requestor == "assistant" else _ask_user(action) for action in gold)
        return [*steps, farewell]

    def close(self) -> None:
        self._world = None
        self._trajectory = []

    def _system_prompt(self) -> str:
        policy = self._world.get_policy()
        if not self.solo:
            return SYSTEM_PROMPT.format(domain_policy=policy, agent_instruction=AGENT_INSTRUCTION)
        instruction = AGENT_SOLO_INSTRUCTION.format(
            stop_function_name=LLMSoloAgent.STOP_FUNCTION_NAME, stop_token=LLMSoloAgent.STOP_TOKEN
        )
        return SYSTEM_PROMPT_SOLO.format(agent_instruction=instruction, domain_policy=policy, ticket=self._task.ticket)

    def _numbered(self, call: ToolCall) -> UpstreamToolCall:
        self._calls += 1
        return UpstreamToolCall(id=call.call_id or f"call_{self._calls}", name=call.name, arguments=call.arguments)

    def _carry_out(self, calls: list[UpstreamToolCall]) -> list[ToolMessage]:
        results = [self._world.get_response(call) for call in calls]
        self._world.sync_tools()
        return results

    def _let_user_answer(self, message: AssistantMessage) -> None:
        """The user's turn, through any calls of its own, until it speaks to the agent."""
        answer = self._user.reply(message)
        for _ in range(MAX_USER_CALLS):
            self._trajectory.append(answer)
            if not answer.is_tool_call():
                break
            results = self._carry_out(answer.tool_calls)
            self._trajectory.extend(results)
            answer = self._user.reply(results)
        else:
            self._ended = Ending.MAX_TURNS
            return
        if ends_dialogue(answer):
            self._ended = Ending.USER_STOP
        self._unseen.append({"role": "user", "content": answer.content})

    def _record(self, message: UpstreamMessage) -> None:
        """Add to the trajectory, and to what the agent sees if it is for its eyes."""
        self._trajectory.append(message)
        if isinstance(message, AssistantMessage):
            calls = [
                ToolCall(call.name, call.arguments, call.id).as_message_part() for call in message.tool_calls or []
            ]
            self._unseen.append(
                {"role": "assistant", "content": message.content or ""} | ({"tool_calls": calls} if calls else {})
            )
        elif isinstance(message, UserMessage) and not message.is_tool_call():
            self._unseen.append({"role": "user", "content": message.content})
        elif isinstance(message, ToolMessage) and message.requestor == "assistant":
            self._unseen.append({"role": "tool", "tool_call_id": message.id, "content": message.content or ""})

    def _refuse(self, reason: str) -> None:
        self._errors += 1
        self._unseen.append({"role": "tool", "content": reason})


def _gold_call(action: GoldAction) -> Action:
    return Action(tool_calls=(ToolCall(action.name, dict(action.arguments)),))


def _ask_user(action: GoldAction) -> Action:
    arguments = ", ".join(f"{name}={value!r}" for name, value in action.arguments.items())
    return Action(text=f"Please use {action.name}({arguments}) on your side and tell me what it says.")
