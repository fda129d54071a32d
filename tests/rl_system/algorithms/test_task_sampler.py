import pytest

from rl_system.algorithms.task_sampler import TaskSampler
from rl_system.errors import UserError
from rl_system.records import Task


def tasks(n: int) -> list[Task]:
    return [Task("tau2", "mock", f"task_{i}", "train") for i in range(n)]


def test_every_epoch_gives_every_task_once_in_another_order():
    sampler = TaskSampler(tasks(20), seed=1)
    first, second = ([sampler.next() for _ in range(20)] for _ in range(2))
    assert set(first) == set(second) == set(tasks(20))
    assert first != second


def test_a_restored_sampler_goes_on_with_the_same_tasks():
    sampler = TaskSampler(tasks(7), seed=3)
    for _ in range(10):
        sampler.next()
    resumed = TaskSampler(tasks(7), seed=3)
    resumed.restore(sampler.state())
    assert [resumed.next() for _ in range(20)] == [sampler.next() for _ in range(20)]


def test_tasks_put_back_come_first_and_survive_a_checkpoint():
    sampler = TaskSampler(tasks(5), seed=0)
    unfinished = [sampler.next(), sampler.next()]
    sampler.put_back(unfinished)
    resumed = TaskSampler(tasks(5), seed=0)
    resumed.restore(sampler.state())
    assert [resumed.next(), resumed.next()] == unfinished


def test_a_checkpoint_of_other_tasks_is_refused():
    state = TaskSampler(tasks(5), seed=0).state()
    with pytest.raises(UserError, match="5 tasks"):
        TaskSampler(tasks(6), seed=0).restore(state)


def test_in_windows_every_stretch_keeps_the_mix_and_every_task_still_comes_once():
    sampler = TaskSampler(tasks(22), seed=5, window=4)
    order = [int(sampler.next().task_id.removeprefix("task_")) for _ in range(22)]
    assert sorted(order) == list(range(22)) and order != list(range(22))
    positions = {task: position for position, task in enumerate(order)}
    for start in range(0, 22, 4):
        window = [positions[task] for task in range(start, min(start + 4, 22))]
        assert max(window) - min(window) == len(window) - 1
