import pytest

from envs.registry import list_tasks, make_environment
from rl_system.config.environment import EnvironmentConfig, UserConfig
from rl_system.errors import UserError
from rl_system.records import Task


@pytest.mark.parametrize(
    ("config", "split", "named"),
    [
        (EnvironmentConfig(name="tau3"), "train", ("environment.name", "tau3", "tau2")),
        (EnvironmentConfig(name="no.such.module"), "train", ("environment.name", "no.such.module")),
        (EnvironmentConfig(name="envs.protocol"), "train", ("environment.name", "list_tasks")),
        (EnvironmentConfig(domain="hotel"), "train", ("environment.domain", "hotel", "airline")),
        (EnvironmentConfig(), "validation", ("validation", "mock", "train", "test", "base")),
        (EnvironmentConfig(domain="airline"), "test", ("environment.user.kind", "solo", "airline", "scripted")),
    ],
)
def test_what_does_not_exist_is_refused_with_what_there_is(
    config: EnvironmentConfig, split: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as error:
        list_tasks(config, split)
    for word in named:
        assert word in str(error.value)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(UserError, match="no_such_task"):
        make_environment(EnvironmentConfig(), Task("tau2", "mock", "no_such_task", "train"))


@pytest.mark.parametrize(
    ("domain", "split", "kind", "size"),
    [
        ("mock", "base", "solo", 6),
        ("mock", "base", "scripted", 9),
        ("airline", "train", "scripted", 30),
        ("airline", "test", "scripted", 20),
        ("retail", "train", "scripted", 74),
        ("retail", "test", "scripted", 40),
        ("telecom", "small", "solo", 20),
        ("telecom", "full", "solo", 2285),
    ],
)
def test_every_split_of_upstream_is_there(domain: str, split: str, kind: str, size: int) -> None:
    config = EnvironmentConfig(domain=domain, user=UserConfig(kind=kind))
    tasks = list_tasks(config, split)
    assert len(tasks) == size == len({task.task_id for task in tasks})
    assert {(task.environment, task.domain, task.split) for task in tasks} == {("tau2", domain, split)}
