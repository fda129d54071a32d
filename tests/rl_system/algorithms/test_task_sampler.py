import json

import pytest

from rl_system.algorithms.task_sampler import TaskSampler
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.records import Task
from rl_system.tracking.names import unlisted


def tasks(n: int) -> list[Task]:
    return [Task("tau2", "mock", f"task_{i}", "train") for i in range(n)]


def draw(sampler: TaskSampler, count: int, first: int = 0) -> list[Task]:
    """The tasks of groups `first`, `first + 1`, …"""
    return [sampler.next(group_id) for group_id in range(first, first + count)]


def sampler_of(count: int, seed: int, **environment) -> TaskSampler:
    return TaskSampler.of(tasks(count), seed, EnvironmentConfig(**environment))


def test_every_epoch_gives_every_task_once_in_another_order():
    sampler = sampler_of(20, seed=1)
    first, second = (draw(sampler, 20) for _ in range(2))
    assert set(first) == set(second) == set(tasks(20))
    assert first != second


def state_with(sampler, unfinished):
    """The sampler's state in a checkpoint in which groups with these tasks are running."""
    again = {str(group_id): task.task_id for group_id, task in unfinished.items()}
    return json.loads(json.dumps(sampler.state() | {"again": again}))


def test_a_restored_sampler_goes_on_with_the_same_tasks():
    sampler = sampler_of(7, seed=3)
    draw(sampler, 10)
    resumed = sampler_of(7, seed=3)
    resumed.restore(sampler.state())
    assert draw(resumed, 20, 10) == draw(sampler, 20, 10)


def test_a_task_put_back_comes_with_its_group_in_whatever_order_groups_start_again():
    sampler = sampler_of(5, seed=0)
    first, second, third = draw(sampler, 3)
    resumed = sampler_of(5, seed=0)
    resumed.restore(state_with(sampler, {0: first, 2: third}))
    assert [resumed.next(2), resumed.next(0)] == [third, first]
    assert second not in draw(resumed, 2, 3)  # the epoch goes on where it was


def test_a_checkpoint_of_other_tasks_is_refused():
    state = sampler_of(5, seed=0).state()
    with pytest.raises(UserError, match="5 tasks"):
        sampler_of(6, seed=0).restore(state)


def test_in_windows_every_stretch_keeps_the_mix_and_every_task_still_comes_once():
    sampler = sampler_of(22, seed=5, shuffle_window=4)
    order = [int(task.task_id.removeprefix("task_")) for task in draw(sampler, 22)]
    assert sorted(order) == list(range(22)) and order != list(range(22))
    positions = {task: position for position, task in enumerate(order)}
    for start in range(0, 22, 4):
        window = [positions[task] for task in range(start, min(start + 4, 22))]
        assert max(window) - min(window) == len(window) - 1


CURRICULUM = {"curriculum": {"enabled": True}}


def test_with_a_curriculum_tasks_that_are_solved_sometimes_come_more_often():
    sampler = sampler_of(10, 0, **CURRICULUM)
    for task in tasks(10):
        sampler.observe(task, 4 if task.task_id == "task_7" else 8, 8)
    drawn = [task.task_id for task in draw(sampler, 500)]
    assert drawn.count("task_7") > 2 * (500 - drawn.count("task_7")) / 9  # twice as often as the mean of the others


@pytest.mark.parametrize("environment", [{}, CURRICULUM], ids=["epochs", "curriculum"])
def test_the_whole_state_survives_a_checkpoint_with_either_order(environment):
    sampler = sampler_of(7, 3, **environment)
    unfinished = draw(sampler, 3)
    sampler.observe(unfinished[0], 2, 8)
    sampler.restore(state_with(sampler, {1: unfinished[1], 2: unfinished[2]}))
    resumed = sampler_of(7, 3, **environment)
    resumed.restore(json.loads(json.dumps(sampler.state())))
    assert draw(resumed, 30, 1) == draw(sampler, 30, 1)
    assert resumed.metrics() == sampler.metrics() and unlisted(sampler.metrics()) == []


@pytest.mark.parametrize(("was", "now"), [({}, CURRICULUM), (CURRICULUM, {})])
def test_a_checkpoint_of_the_other_order_is_refused(was, now):
    state = sampler_of(5, 0, **was).state()
    with pytest.raises(UserError, match="environment.curriculum.enabled (true|false)"):
        sampler_of(5, 0, **now).restore(state)
