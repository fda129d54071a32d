"""An agent that calls the model as its task says, through OpenAI's client."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from openai import APIError, AsyncOpenAI, PermissionDeniedError

BEHAVIOURS = (
    "talks", "uses_tools", "helper", "compacts", "in_parallel", "by_call", "raises", "exits", "hangs", "calls_on", "never_calls",
    "asks_for_another_key", "calls_too_often", "swallows_failures", "wrong_id", "speaks_of_itself",
    "talks_at_length",
)  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]


def tasks(split: str) -> list[dict]:
    """`train` has all of them; any other split names its own, joined by `+`."""
    return [{"id": name} for name in (BEHAVIOURS if split == "train" else split.split("+"))]


async def run(task: dict, model):
    behaviour = task["id"]
    async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
        return await globals()[behaviour](client, model)


async def say(client: AsyncOpenAI, model, messages: list, **rest):
    rest = {"max_tokens": 16} | rest
    return await client.chat.completions.create(model=model.name, messages=messages, **rest)


def system(text: str) -> list:
    return [{"role": "system", "content": text}, {"role": "user", "content": "Go on."}]


async def talks(client, model, turns: int = 3, messages: list | None = None, **rest) -> float:
    messages = messages or system("You talk.")
    for _ in range(turns):
        answer = await say(client, model, messages, **rest)
        messages += [answer.choices[0].message, {"role": "user", "content": "And?"}]
    return 1.0 - len(answer.choices[0].message.content or "") / 1000


async def talks_at_length(client, model) -> float:
    return await talks(client, model, 12)


async def uses_tools(client, model) -> float:
    messages = system("You add.")
    for _ in range(3):
        message = (await say(client, model, messages, tools=TOOLS)).choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in message.tool_calls or ()]
        messages += [message, *(results or [{"role": "user", "content": "Call it."}])]
    return 0.5


async def helper(client, model) -> float:
    messages = system("You have a helper.")
    for number in range(2):
        message = (await say(client, model, messages)).choices[0].message
        await talks(client, model, 2, [{"role": "system", "content": "You help."}, {"role": "user", "content": str(number)}])
        messages += [message, {"role": "user", "content": "The helper has helped."}]
    return 0.75


async def compacts(client, model) -> float:
    messages = system("You forget.")
    for _ in range(2):
        message = (await say(client, model, messages)).choices[0].message
        messages += [message, {"role": "user", "content": "And?"}]
    messages = [messages[0], {"role": "user", "content": "So far: much."}]
    await talks(client, model, 2, messages)
    return 0.6


async def in_parallel(client, model) -> float:
    same = [say(client, model, system("You are asked thrice.")) for _ in range(3)]
    others = [talks(client, model, 2, system(f"You are number {number}.")) for number in range(3)]
    await asyncio.gather(*same, *others)
    return 0.4


async def by_call(client, model) -> dict:
    first = await say(client, model, system("You are judged."))
    second = await say(client, model, system("You are judged too."))
    return {first.id: 1.0, second.id: 0.0}


async def wrong_id(client, model) -> dict:
    await talks(client, model, 1)
    return {"chatcmpl-unknown": 1.0}


async def raises(client, model) -> float:
    await talks(client, model, 1)
    raise KeyError("no such order")


async def exits(client, model) -> float:
    raise SystemExit(3)


async def hangs(client, model) -> float:
    await talks(client, model, 1)
    while True:
        time.sleep(0.01)


async def calls_on(client, model) -> float:
    """Leaves a thread that goes on calling after the end, and tells what became of that."""
    import threading

    from openai import OpenAI

    def go_on() -> None:
        with OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as late:
            while True:
                try:
                    late.chat.completions.create(model=model.name, messages=system("Late."), max_tokens=2)
                except APIError as error:
                    if folder := os.environ.get("TEST_LATE_CALLS"):
                        (Path(folder) / "late").write_text(type(error).__name__)
                    return

    await talks(client, model, 1)
    threading.Thread(target=go_on, daemon=True).start()
    return 0.3


async def never_calls(client, model) -> float:
    return 0.1


async def asks_for_another_key(client, model) -> float:
    async with AsyncOpenAI(base_url=model.base_url, api_key="sk-other", max_retries=0) as other:
        try:
            await talks(other, model, 1)
        except APIError as error:
            assert error.status_code == 401
            return 0.2


async def calls_too_often(client, model) -> float:
    for number in range(1000):
        await say(client, model, system(f"Call {number}."), max_tokens=1)
    return 1.0


async def swallows_failures(client, model) -> float:
    try:
        return await talks(client, model)
    except PermissionDeniedError:
        raise
    except APIError:
        return 0.0


async def speaks_of_itself(client, model) -> float:
    await talks(client, model, 2, system(f"My key ends in {model.api_key[-8:]}."))
    return 0.9
