"""More tasks for τ²-bench's mock domain: a `train` and a `test` split in upstream's own task schema.

Upstream's mock domain has nine tasks, too few to train on. These use its tools and its reward definition, and grade
from copying one identifier into one call up to three calls that depend on each other's results. Generation is
deterministic, no task title, user name or world occurs twice, and the splits share no task. Every task changes the
database (or demands a transfer to a human), so that doing nothing earns 0.

A recipe turns a `_World` (users, existing tasks, fresh titles) into a ticket and the gold actions that solve it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SIZES = {"train": 128, "test": 64}

_VERBS = (
    "Review Draft Update Prepare Schedule Publish Archive Test Order Collect Translate Inspect Compare Approve Print "
    "Confirm Rewrite Measure Repair Check"
).split()
_OBJECTS = (
    "budget,newsletter,contract,guest list,travel plan,price list,safety manual,floor plan,sales report,survey,"
    "job posting,backup server,login page,invoice template,training slides,press release,office keys,sensor data,"
    "meeting notes,shipping labels"
).split(",")
_SUFFIXES = (
    ",for Monday,for the board,in Oslo,for the new hires,before noon,for Lisbon,with finance,for the lab,"
    "by email,for spring,in room 12"
).split(",")
_DESCRIPTIONS = (
    "Needs two signatures,Ask the legal team first,Use the new template,Keep it under one page,Send a copy to finance,"
    "Check the figures twice,Due at the end of the week,Include the latest photos,Add a short summary,"
    "Start with the old version"
).split(",")
_FIRST_NAMES = (
    "Ada Bruno Carla Deniz Elena Farid Greta Hugo Ines Jonas Kira Luca Mona Nadir Olga Pavel Rosa Samir Tessa Umar"
).split()
_LAST_NAMES = (
    "Adler Brandt Costa Dahl Ekberg Fontana Garcia Haas Ito Jensen Kowal Lopez Moreau Novak Okafor Petrov".split()
)


@dataclass
class _World:
    """The initial database of one task, and what the recipe has taken from it."""

    random: random.Random
    titles: list[str]
    """Titles that no task of the set has yet; taken from the end."""
    tasks: dict[str, dict[str, Any]]
    users: dict[str, dict[str, Any]]
    used: set[str] = field(default_factory=set)

    def user(self) -> str:
        return self._take(self.users)

    def task(self, status: str) -> str:
        return self._take([task_id for task_id, task in self.tasks.items() if task["status"] == status])

    def title(self) -> str:
        return self.titles.pop()

    def say(self, *phrasings: str, **values: str) -> str:
        return self.random.choice(phrasings).format(**values)

    def _take(self, candidates: Any) -> str:
        chosen = self.random.choice([each for each in candidates if each not in self.used])
        self.used.add(chosen)
        return chosen


Step = tuple[str, list[tuple[str, dict[str, Any]]]]
"""A sentence of the ticket, and the calls that it asks for."""


def _create(world: _World) -> Step:
    user, title = world.user(), world.title()
    sentence = world.say(
        "Create a new task called '{title}' for {user}.",
        "{user} needs a task titled '{title}'.",
        "Please add the task '{title}' for {user}.",
        title=title,
        user=user,
    )
    return sentence, [("create_task", {"user_id": user, "title": title})]


def _create_described(world: _World) -> Step:
    user, title, description = world.user(), world.title(), world.random.choice(_DESCRIPTIONS)
    sentence = world.say(
        "Create the task '{title}' for {user} with the description '{description}'.",
        "{user} needs a task titled '{title}'. Its description should read '{description}'.",
        title=title,
        user=user,
        description=description,
    )
    return sentence, [("create_task", {"user_id": user, "title": title, "description": description})]


def _complete(world: _World) -> Step:
    task = world.task("pending")
    sentence = world.say(
        "Mark {task} as completed.", "Set the status of {task} to completed.", "{task} is finished.", task=task
    )
    return sentence, [("update_task_status", {"task_id": task, "status": "completed"})]


def _reopen(world: _World) -> Step:
    task = world.task("completed")
    sentence = world.say(
        "Set {task} back to pending.", "Reopen {task}.", "{task} is not finished after all.", task=task
    )
    return sentence, [("update_task_status", {"task_id": task, "status": "pending"})]


def _delete(world: _World) -> Step:
    task = world.task("pending")
    sentence = world.say("Delete {task}.", "The user wants {task} to be deleted.", task=task)
    return sentence, [("transfer_to_human_agents", {"summary": f"The user wants to delete {task}."})]


def _create_by_name(world: _World) -> Step:
    user, title = world.user(), world.title()
    sentence = world.say(
        "{name} needs a task titled '{title}'.",
        "Create the task '{title}' for {name}.",
        title=title,
        name=world.users[user]["name"],
    )
    return sentence, [("get_users", {}), ("create_task", {"user_id": user, "title": title})]


def _create_completed(world: _World) -> Step:
    sentence, calls = _create(world)
    task = f"task_{len(world.tasks) + 1}"
    followed = world.say(" Then mark the new task as completed.", " The new task is already completed.")
    return sentence + followed, [*calls, ("update_task_status", {"task_id": task, "status": "completed"})]


Recipe = tuple[str, tuple[Callable[[_World], Step], ...]]

_EASY: tuple[Recipe, ...] = (
    ("create", (_create,)),
    ("complete", (_complete,)),
    ("describe", (_create_described,)),
    ("reopen", (_reopen,)),
    ("complete", (_complete,)),
    ("create", (_create,)),
    ("describe", (_create_described,)),
)
"""One call each."""
_HARD: tuple[Recipe, ...] = (
    ("complete-reopen", (_complete, _reopen)),
    ("by-name", (_create_by_name,)),
    ("create-complete", (_create, _complete)),
    ("delete", (_delete,)),
    ("create-create", (_create, _create)),
    ("create-then-complete", (_create_completed,)),
    ("three", (_complete, _create, _reopen)),
    ("complete-reopen", (_complete, _reopen)),
)
"""Two or three calls, or one that the policy of the domain asks for and the ticket does not."""
_RECIPES = tuple(recipe for hard in _HARD for recipe in (*_EASY, hard))
"""In the order in which they repeat: seven easy tasks to a hard one, in every stretch of eight tasks."""


@functools.cache
def splits() -> dict[str, list[dict[str, Any]]]:
    """Raw tasks by split, in upstream's schema. Callers must not change them."""
    titles = sorted(
        f"{verb} the {thing}{' ' * bool(suffix)}{suffix}"
        for verb in _VERBS
        for thing in _OBJECTS
        for suffix in _SUFFIXES
    )
    random.Random("titles").shuffle(titles)
    return {
        split: [_make(split, index, *_RECIPES[index % len(_RECIPES)], titles) for index in range(size)]
        for split, size in SIZES.items()
    }


def _make(
    split: str, index: int, kind: str, steps: tuple[Callable[[_World], Step], ...], titles: list[str]
) -> dict[str, Any]:
    world = _populate(random.Random(f"{split} {index}"), titles)
    done = [step(world) for step in steps]
    sentences = [sentence for sentence, _ in done]
    calls = [call for _, calls in done for call in calls]
    transfer = any(name == "transfer_to_human_agents" for name, _ in calls)
    ticket = " ".join(sentences)
    return {
        "id": f"{split}-{index:03d}-{kind}",
        "description": {"purpose": f"Generated mock task, {len(calls)} gold actions: {kind}"},
        "user_scenario": {"instructions": f"You contact support with this request: {ticket}"},
        "ticket": ticket,
        "initial_state": {"initialization_data": {"agent_data": {"tasks": world.tasks, "users": world.users}}},
        "evaluation_criteria": {
            "actions": [
                {
                    "action_id": f"{name}_{position}",
                    "name": name,
                    "arguments": arguments,
                    # As upstream's own impossible task does it: which words the summary uses does not matter.
                    "compare_args": [] if name == "transfer_to_human_agents" else None,
                }
                for position, (name, arguments) in enumerate(calls)
            ],
            "reward_basis": ["DB", "ACTION"] if transfer else ["DB"],
        },
    }


def _populate(chance: random.Random, titles: list[str]) -> _World:
    """Users with names and numbers of their own, and tasks `task_1 … task_n`, each owned by one of them.

    `user_1` and `task_1` are always there: initial data is laid over upstream's own database, which has these two.
    Task numbers have no gaps because `create_task` numbers a new task by counting.
    """
    user_ids = ["user_1", *(f"user_{number}" for number in chance.sample(range(2, 60), 3))]
    first_names, last_names = chance.sample(_FIRST_NAMES, 4), chance.sample(_LAST_NAMES, 4)
    users = {
        user_id: {"user_id": user_id, "name": f"{first} {last}", "tasks": []}
        for user_id, first, last in zip(user_ids, first_names, last_names, strict=True)
    }
    tasks = {}
    for number in range(1, chance.randint(5, 14)):
        task_id = f"task_{number}"
        status = "completed" if number % 3 == 0 else "pending"
        tasks[task_id] = {"task_id": task_id, "title": titles.pop(), "description": None, "status": status}
        users[chance.choice(user_ids)]["tasks"].append(task_id)
    return _World(chance, titles, tasks, users)
