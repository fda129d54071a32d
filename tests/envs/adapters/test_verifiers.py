"""Environments of the verifiers library as agents, against a chat server."""

import asyncio
from types import SimpleNamespace

import pytest

vf = pytest.importorskip("verifiers", reason="needs the extra `verifiers`")

from datasets import Dataset

from envs.adapters.verifiers import adapt
from rl_system.errors import UserError
from tests.envs.tau2.chat_server import ChatServer, serving

ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]


def sums(**settings):
    def right(completion, answer, **_):
        return float(completion[-1]["content"].strip() == answer)

    data = Dataset.from_list(ROWS)
    return vf.SingleTurnEnv(
        dataset=data, eval_dataset=data.select([1]), system_prompt="Compute.", rubric=vf.Rubric(funcs=[right]), **settings
    )


def play(server, task, run):
    async def once(address):
        return await run(task, SimpleNamespace(base_url=address, api_key="secret", name="policy"))

    with serving(server) as address:
        return asyncio.run(once(address))


def test_rows_of_the_data_sets_are_the_tasks():
    tasks, _ = adapt(sums)
    assert [task["id"] for task in tasks("train")] == ["train-0", "train-1"]
    assert [task["answer"] for task in tasks("test")] == ["4"]
    with pytest.raises(UserError, match="train, test"):
        tasks("validation")


@pytest.mark.parametrize(("said", "reward"), [("2", 1.0), ("3", 0.0)])
def test_the_librarys_own_rollout_asks_the_model_and_scores_its_answer(said, reward):
    tasks, run = adapt(sums)
    server = ChatServer([said])
    assert play(server, tasks("train")[0], run) == reward
    (request,) = server.requests
    assert request["model"] == "policy"
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert request["messages"][1]["content"] == "1 + 1?"
    assert not {"top_p", "temperature", "n"} & request.keys()


def test_a_model_that_does_not_answer_is_no_reward_of_zero():
    tasks, run = adapt(sums)
    with pytest.raises(Exception, match="(?i)error|failed"):
        play(ChatServer([500]), tasks("train")[0], run)
