import json
import subprocess
import sys

import pytest

from envs.registry import list_tasks
from envs.tau2 import generated
from envs.tau2.upstream import UpstreamTask
from tests.envs.tau2.playing import config_for, play


@pytest.fixture(scope="module")
def tasks() -> dict[str, list[dict]]:
    return generated.splits()


def test_there_are_enough_tasks_and_the_splits_share_none(tasks: dict[str, list[dict]]) -> None:
    assert len(tasks["train"]) >= 64 and len(tasks["test"]) >= 32
    everything = [task for split in tasks.values() for task in split]
    assert len({task["id"] for task in everything}) == len(everything)

    def problem(task: dict) -> str:
        return json.dumps([task["ticket"], task["initial_state"]], sort_keys=True)

    assert not {problem(task) for task in tasks["train"]} & {problem(task) for task in tasks["test"]}
    assert len({problem(task) for task in everything}) == len(everything)


def test_no_title_is_asked_for_twice(tasks: dict[str, list[dict]]) -> None:
    titles = [
        action["arguments"]["title"]
        for split in tasks.values()
        for task in split
        for action in task["evaluation_criteria"]["actions"]
        if action["name"] == "create_task"
    ]
    assert len(set(titles)) == len(titles) > 64


def test_every_task_obeys_upstreams_schema_and_needs_one_to_three_actions(tasks: dict[str, list[dict]]) -> None:
    for split in tasks.values():
        for task in split:
            actions = UpstreamTask.model_validate(task).evaluation_criteria.actions
            assert 1 <= len(actions) <= 3


def test_what_the_gold_actions_copy_stands_in_the_ticket_or_in_a_result(tasks: dict[str, list[dict]]) -> None:
    """Otherwise the task could only be guessed."""
    config = config_for("mock")
    for split in ("train", "test"):
        for task, raw in zip(list_tasks(config, split), tasks[split], strict=True):
            environment, _ = play(config, task)
            results = " ".join(message.content for message in environment._trajectory if message.role == "tool")
            for action in raw["evaluation_criteria"]["actions"]:
                for name, value in action["arguments"].items():
                    if name in ("user_id", "task_id", "title"):
                        assert value in raw["ticket"] or value in results, (task.task_id, name)


def test_generation_does_not_depend_on_the_process(tasks: dict[str, list[dict]]) -> None:
    code = "import json; from envs.tau2 import generated; print(json.dumps(generated.splits(), sort_keys=True))"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert again.stdout.splitlines()[-1] == json.dumps(tasks, sort_keys=True)
