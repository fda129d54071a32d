"""Budgets that contain each other are checked together, with numbers."""

import pytest

from rl_system.config.load import build_config
from rl_system.errors import UserError

USER = ["--environment.user.kind", "llm", "--environment.user.model", "m", "--environment.user.api_base", "http://127.0.0.1:1/v1"]


def refusal(*words: object) -> str:
    with pytest.raises(UserError) as error:
        build_config({"name": "run"}, list(map(str, words)))
    return str(error.value)


def accepted(*words: object) -> None:
    build_config({"name": "run"}, list(map(str, words)))


def test_a_run_waits_longer_than_all_attempts_at_one_slow_episode():
    text = refusal("--rollout.stall_timeout_s", 1979)
    assert "rollout.stall_timeout_s is 1979" in text and "may take 1980 s" in text and "at least 1980" in text
    assert "environment.episode_timeout_s 600" in text and "environment.step_timeout_s 60" in text
    accepted("--rollout.stall_timeout_s", 1980)
    assert "--environment.episode_timeout_s 3600" in refusal("--environment.episode_timeout_s", 3600)


def test_a_run_waits_longer_than_the_rounds_in_which_a_group_is_played():
    text = refusal("--environment.concurrency", 1)
    assert "8 rounds of environment.concurrency 1" in text and "5280" in text
    accepted("--environment.concurrency", 1, "--rollout.stall_timeout_s", 5280)


def test_an_answer_of_the_user_has_time_for_every_request_and_for_waiting_at_the_gate():
    text = refusal(*USER, "--environment.user.timeout_s", 200)
    assert "environment.user.reply_timeout_s is 600" in text and "800 s: 4 requests" in text
    assert "environment.user.retries 3" in text and "environment.user.timeout_s 200" in text
    accepted(*USER, "--environment.user.timeout_s", 200, "--environment.user.retries", 2)
    text = refusal(*USER, "--environment.user.max_concurrency", 4)
    assert "may take 660 s" in text and "environment.concurrency 32" in text and "environment.user.max_concurrency 4" in text


def test_what_no_user_asks_for_needs_no_time():
    accepted("--environment.user.timeout_s", 10_000)


def test_a_step_has_the_users_whole_budget_on_top_of_its_own():
    config = build_config({"name": "run"}, USER)
    assert config.environment.call_timeout_s == config.environment.step_timeout_s + config.environment.user.reply_timeout_s


def test_trainers_are_not_given_up_while_they_wait_for_each_other():
    text = refusal("--allocation.start_timeout_s", 100)
    assert "allocation.start_timeout_s is 100" in text and "allocation.join_timeout_s 120" in text


def test_a_group_that_nobody_can_play_is_a_slip_of_the_pen():
    text = refusal("--rollout.group_size", 1_000_000)
    assert "rollout.group_size is 1000000" in text and "125000 rounds" in text
