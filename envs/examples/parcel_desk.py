"""An agent at a parcel desk: it picks a tool, asks a colleague who is the model too, and goes on from a note of its own.

Everything that makes agents' rollouts a tree is in it, small enough for a model of 135 million parameters on a CPU:

    triage     one tool for the customer's message: `track 4821`, `refund 7731` or `ask blue lamp`
    colleague  the tool `ask` is an agent of its own, with a context of its own
    note       what came of it, in a few words: the context is compacted to them
    reply      to the customer, from the note alone

An episode earns 0.4 for the right tool, 0.3 for a note that keeps what matters, and 0.3 for a reply that says it.
"""

from __future__ import annotations

import random

from openai import AsyncOpenAI

from envs.agents import Endpoint

Messages = list[dict[str, str]]

KINDS = ("track", "refund", "ask")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
CATALOGUE = {
    "blue lamp": "weighs 2 kilos", "red kettle": "holds 3 litres", "oak chair": "weighs 6 kilos",
    "green tent": "sleeps 4 persons", "steel pan": "holds 2 litres", "wool rug": "weighs 5 kilos",
}  # fmt: skip
SAID = {
    "track": ("Where is parcel {}?", "My parcel {} has not come yet.", "When does {} arrive?", "I am still waiting for {}."),
    "refund": ("Please pay back order {}.", "I want my money for {}.", "Order {} broke, money back please.", "{} is no good, refund it."),
    "ask": ("How large is the {}?", "Tell me about the {}.", "Is the {} big?", "What do you know of the {}?"),
}  # fmt: skip

TRIAGE: Messages = [
    {"role": "system", "content": "You work at a parcel desk. Call one tool: track, refund or ask."},
    {"role": "user", "content": "Where is parcel 1204?"}, {"role": "assistant", "content": "track 1204"},
    {"role": "user", "content": "Please pay back order 5530."}, {"role": "assistant", "content": "refund 5530"},
    {"role": "user", "content": "How large is the red kettle?"}, {"role": "assistant", "content": "ask red kettle"},
]  # fmt: skip
COLLEAGUE: Messages = [
    {"role": "system", "content": "You know the catalogue. " + " ".join(f"{name}: {fact}." for name, fact in CATALOGUE.items())},
    {"role": "user", "content": "red kettle"}, {"role": "assistant", "content": "holds 3 litres"},
    {"role": "user", "content": "oak chair"}, {"role": "assistant", "content": "weighs 6 kilos"},
]  # fmt: skip
NOTE: Messages = [
    {"role": "system", "content": "Shorten to a note."},
    {"role": "user", "content": "track 1204: arrives Monday"}, {"role": "assistant", "content": "1204 arrives Monday"},
    {"role": "user", "content": "refund 5530: paid 20 euros"}, {"role": "assistant", "content": "5530 paid 20 euros"},
]  # fmt: skip
REPLY: Messages = [
    {"role": "system", "content": "Answer the customer."},
    {"role": "user", "content": "1204 arrives Monday"}, {"role": "assistant", "content": "Good news: 1204 arrives Monday."},
    {"role": "user", "content": "5530 paid 20 euros"}, {"role": "assistant", "content": "Good news: 5530 paid 20 euros."},
]  # fmt: skip


def tasks(split: str) -> list[dict]:
    """256 to train on, 48 others to evaluate on; every kind of message equally often."""
    numbers = {"train": range(256), "test": range(1000, 1048)}[split]
    return [_task(number) for number in numbers]


def _task(number: int) -> dict:
    draw = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    subject = draw.choice(list(CATALOGUE)) if kind == "ask" else str(draw.randint(2000, 9999))
    fact = {"track": f"arrives {draw.choice(DAYS)}", "refund": f"paid {draw.randint(11, 99)} euros", "ask": CATALOGUE.get(subject)}
    return {"id": f"{kind}-{number}", "kind": kind, "subject": subject, "fact": fact[kind],
            "message": draw.choice(SAID[kind]).format(subject)}  # fmt: skip


async def run(task: dict, model: Endpoint) -> float:
    async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:

        async def say(messages: Messages) -> str:
            completion = await client.chat.completions.create(model=model.name, messages=messages)
            return (completion.choices[0].message.content or "").strip()

        dialogue = [*TRIAGE, {"role": "user", "content": task["message"]}]
        tool = await say(dialogue)
        if tool.rstrip(".").lower() != f"{task['kind']} {task['subject']}":
            return 0.0
        result = await say([*COLLEAGUE, {"role": "user", "content": task["subject"]}]) if task["kind"] == "ask" else task["fact"]
        note = await say([*NOTE, {"role": "user", "content": f"{tool}: {result}"}])
        reply = await say([*REPLY, {"role": "user", "content": note}])
    kept = _holds(note, task) and len(note) <= 40
    return 0.4 + 0.3 * kept + 0.3 * (_holds(reply, task) and len(reply) <= 60)


def gold(task: dict) -> list[str]:
    subject, fact = task["subject"], task["fact"]
    asked = [fact] if task["kind"] == "ask" else []
    return [f"{task['kind']} {subject}", *asked, f"{subject} {fact}", f"Good news: {subject} {fact}."]


def _holds(text: str, task: dict) -> bool:
    return task["subject"] in text and task["fact"] in text
