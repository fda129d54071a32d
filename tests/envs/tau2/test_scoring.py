"""The fast score against the reward of upstream's own evaluator, which replays the whole dialogue."""

import random

import pytest

from envs.protocol import Action, ToolCall
from envs.registry import list_tasks
from envs.tau2.scoring import gold_hashes
from rl_system.records import Ending
from tests.envs.tau2.playing import DONE, config_for, nothing, play, upstream_reward, variants

SETTINGS = [
    ("mock", "base", "solo"),
    ("mock", "base", "scripted"),
    ("mock", "train", "solo"),
    ("mock", "test", "solo"),
    ("telecom", "base", "solo"),
    ("telecom", "base", "scripted"),
    ("telecom-workflow", "base", "scripted"),
    ("retail", "base", "scripted"),
    ("airline", "base", "scripted"),
]
SAMPLED = {"retail": 4, "airline": 1}
"""Tasks of the quick test; upstream's evaluator takes a second for one airline episode."""


def assert_scores_agree(domain: str, split: str, kind: str, sample: int | None) -> None:
    chance = random.Random(f"{domain} {split} {kind}")
    config = config_for(domain, kind)
    tasks = list_tasks(config, split)
    tasks = tasks if sample is None else chance.sample(tasks, min(sample, len(tasks)))
    for task in tasks:
        demonstration = play(config, task, [])[0].demonstration()
        for name, actions in (variants(demonstration, chance) | {"nothing": nothing(config)}).items():
            environment, ended = play(config, task, actions)
            expected = upstream_reward(environment, ended)
            score = environment.score(ended)
            assert score.reward == (0.0 if expected is None else expected), (task.task_id, name, actions, expected)


@pytest.mark.parametrize(("domain", "split", "kind"), SETTINGS)
def test_score_equals_upstreams_evaluator(domain: str, split: str, kind: str) -> None:
    assert_scores_agree(domain, split, kind, SAMPLED.get(domain, 24))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("domain", "split", "kind"), SETTINGS)
def test_score_equals_upstreams_evaluator_on_every_task(domain: str, split: str, kind: str) -> None:
    assert_scores_agree(domain, split, kind, None)


@pytest.mark.parametrize(
    ("domain", "split", "kind", "tasks", "solved_by_gold", "solved_by_nothing"),
    [
        ("mock", "train", "solo", 128, 128, 0),
        ("mock", "test", "solo", 64, 64, 0),
        # One of the nine wants words that no gold action says; one has no criterion that doing nothing would break.
        ("mock", "base", "scripted", 9, 8, 1),
        ("telecom", "train", "solo", 74, 74, 0),
        ("telecom", "test", "solo", 40, 40, 0),
        ("telecom", "base", "scripted", 114, 114, 0),
        pytest.param("airline", "base", "scripted", 50, 50, 19, marks=pytest.mark.slow),
        pytest.param("retail", "base", "scripted", 114, 114, 7, marks=pytest.mark.slow),
    ],
)
def test_gold_actions_and_doing_nothing_earn_what_they_earn_upstream(
    domain: str, split: str, kind: str, tasks: int, solved_by_gold: int, solved_by_nothing: int
) -> None:
    config = config_for(domain, kind)
    listed = list_tasks(config, split)
    assert len(listed) == tasks
    for actions, expected in ((None, solved_by_gold), (nothing(config), solved_by_nothing)):
        played = (play(config, task, actions) for task in listed)
        assert sum(environment.score(ended).reward for environment, ended in played) == expected


def test_an_episode_that_did_not_end_by_itself_earns_nothing() -> None:
    config = config_for("mock")
    environment, ended = play(config, list_tasks(config, "train")[0])
    assert environment.score(ended).reward == 1.0
    for cut in (Ending.MAX_TURNS, Ending.MAX_TOKENS, Ending.MAX_ERRORS, Ending.TIMEOUT):
        assert environment.score(cut).reward == 0.0


def test_an_assertion_that_raises_is_not_met_and_is_counted() -> None:
    """Upstream's evaluator raises where the task that an assertion asks for was never created."""
    config = config_for("mock")
    task = next(each for each in list_tasks(config, "base") if each.task_id == "create_task_1_with_env_assertions")
    environment, ended = play(config, task, [DONE])
    assert upstream_reward(environment, ended) is None
    score = environment.score(ended)
    assert (score.reward, score.parts["env_assertion"], score.counts) == (0.0, 0.0, {"evaluator_errors": 1})


def test_a_state_that_cannot_be_hashed_is_wrong_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for("mock")
    environment, ended = play(config, list_tasks(config, "train")[0])
    monkeypatch.setattr(environment._world, "get_db_hash", lambda: {}["nothing"])
    score = environment.score(ended)
    assert (score.reward, score.parts["db"], score.counts) == (0.0, 0.0, {"evaluator_errors": 1})


def test_scoring_leaves_the_world_as_it_was() -> None:
    config = config_for("telecom")
    for task in list_tasks(config, "test")[:5]:
        environment, ended = play(config, task)
        first = environment.score(ended)
        assert environment.score(ended) == first


def test_the_gold_state_does_not_depend_on_what_was_played_before() -> None:
    config = config_for("mock")
    task = list_tasks(config, "train")[0]
    before = gold_hashes("mock", task.task_id)
    play(config, task, [Action(tool_calls=(ToolCall("create_task", {"user_id": "user_1", "title": "x"}),)), DONE])
    gold_hashes.cache_clear()
    assert gold_hashes("mock", task.task_id) == before
