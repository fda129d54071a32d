"""Agents written in frameworks that people use, unchanged, against the endpoint: what is trained is what was sampled."""

import asyncio
import json

import numpy as np
import pytest
from openai import AsyncOpenAI

from tests.rl_system.endpoint.servers import TIMEOUT_S, Door, opened, run, serving

agents = pytest.importorskip("agents", reason="needs openai-agents, of the extra `test`")
pydantic_ai = pytest.importorskip("pydantic_ai", reason="needs pydantic-ai-slim, of the extra `test`")


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


TURNS = [f"Let me add.\n{call('add', a=2, b=3)}", f"{call('add', a=5, b=1)}\n{call('add', a=5, b=2)}", "It is 6 or 7.", "You are welcome."]


QUESTIONS = ("What is 2 + 3, and one and two more?", "Thanks.")


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def check_exactness(record, done) -> None:
    """Every call goes on from the one before, its prompt begins with what that one saw and sampled, and all of it is trained."""
    assert len(record.turns) == len(done)
    for turn, (prompt, response) in zip(record.turns, done, strict=True):
        assert np.array_equal(turn.prompt_ids, prompt) and np.array_equal(turn.response_ids, response)
    assert record.parents == [*range(-1, len(done) - 1)]
    assert not record.counts.get("edited_histories") and not record.counts.get("refused_calls")
    for before, after in zip(record.turns, record.turns[1:], strict=False):
        start = np.concatenate([before.prompt_ids, before.response_ids])
        assert np.array_equal(after.prompt_ids[: len(start)], start)


async def with_openai_agents(
    door: Door, model: str, stream: bool, instructions: str = "Add.", tools=(add,), questions=QUESTIONS
) -> list[str]:
    agents.set_tracing_disabled(True)
    connection = AsyncOpenAI(base_url=door.base_url, api_key=door.key, max_retries=0, timeout=TIMEOUT_S)
    kind = {"responses": agents.OpenAIResponsesModel, "chat": agents.OpenAIChatCompletionsModel}[model]
    offered = [agents.function_tool(tool) for tool in tools]
    agent = agents.Agent(name="adder", instructions=instructions, model=kind("policy", connection), tools=offered)

    async def ask(given):
        if not stream:
            return await agents.Runner.run(agent, given)
        result = agents.Runner.run_streamed(agent, given)
        async for _ in result.stream_events():
            pass
        return result

    first = await ask(questions[0])
    second = await ask([*first.to_input_list(), {"role": "user", "content": questions[1]}])
    await connection.close()
    return [first.final_output, second.final_output]


async def with_pydantic_ai(
    door: Door, model: str, stream: bool, instructions: str = "Add.", tools=(add,), questions=QUESTIONS
) -> list[str]:
    if model == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        connection = AsyncAnthropic(base_url=door.anthropic_base_url, api_key=door.key, max_retries=0, timeout=TIMEOUT_S)
        chosen = AnthropicModel("policy", provider=AnthropicProvider(anthropic_client=connection))
    else:
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        connection = AsyncOpenAI(base_url=door.base_url, api_key=door.key, max_retries=0, timeout=TIMEOUT_S)
        kind = OpenAIChatModel if model == "chat" else OpenAIResponsesModel
        chosen = kind("policy", provider=OpenAIProvider(openai_client=connection))
    agent = pydantic_ai.Agent(chosen, instructions=instructions, tools=[pydantic_ai.Tool(tool) for tool in tools])

    async def read_along(_, events):
        async for _ in events:
            pass

    async def ask(text, history=None):
        # Its `run_stream` takes the first words for the answer, also where calls follow; a handler of events does not.
        result = await agent.run(text, message_history=history, event_stream_handler=read_along if stream else None)
        return result.output, result.all_messages()

    first, history = await ask(questions[0])
    second, _ = await ask(questions[1], history)
    await connection.close()
    return [first, second]


FRAMEWORKS = [
    (with_openai_agents, "responses"), (with_openai_agents, "chat"),
    (with_pydantic_ai, "chat"), (with_pydantic_ai, "responses"), (with_pydantic_ai, "anthropic"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("framework", "model"), FRAMEWORKS, ids=lambda each: getattr(each, "__name__", each))
def test_an_agent_of_a_framework_is_trained_on_exactly_what_was_sampled(framework, model, stream):
    async def body():
        async with serving() as server:
            door = opened(server, *TURNS)
            outputs = await framework(door, model, stream)
            return outputs, await server.close_session(door.key), door.engine.done

    outputs, record, done = run(body())
    assert outputs == TURNS[2:]
    check_exactness(record, done)
    results = [line["content"] for line in record.transcript if line["role"] == "tool"]
    assert results == ["5", "6", "7"]


def test_a_sub_agent_that_is_called_as_a_tool_is_a_branch_of_its_own():
    async def body():
        async with serving() as server:
            door = opened(server, call("helper", input="2 and 3"), "5.", "The helper says 5.")
            agents.set_tracing_disabled(True)
            async with AsyncOpenAI(base_url=door.base_url, api_key=door.key, max_retries=0, timeout=TIMEOUT_S) as connection:
                model = agents.OpenAIChatCompletionsModel("policy", connection)
                helper = agents.Agent(name="helper", instructions="You add.", model=model)
                tool = helper.as_tool("helper", "Adds.")
                agent = agents.Agent(name="boss", instructions="Ask the helper.", model=model, tools=[tool])
                result = await agents.Runner.run(agent, "2 + 3?")
            return result.final_output, await server.close_session(door.key)

    output, record = run(body())
    assert output == "The helper says 5."
    assert record.parents == [-1, -1, 0]


def test_an_agent_that_does_nothing_wrong_is_not_disturbed_by_another_that_runs_beside_it():
    async def body():
        async with serving() as server:
            doors = [opened(server, *TURNS) for _ in range(4)]
            await asyncio.gather(*(with_openai_agents(door, "chat", False) for door in doors))
            return [(await server.close_session(door.key), door.engine.done) for door in doors]

    for record, done in run(body()):
        check_exactness(record, done)
