"""Agents in worker processes: what they return, and what becomes of those that misbehave."""

import asyncio
import math
import time

import psutil
import pytest

import envs.host
from envs.agents import AgentResult, Endpoint
from envs.contract import ContractBroken, check_gold
from envs.host import EnvironmentHost
from envs.protocol import EnvironmentFailed
from envs.registry import agent_of, has_gold, is_agent, list_tasks
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError

AGENT = "tests.envs.agents_on_demand"
ENDPOINT = Endpoint("http://127.0.0.1:1/v1", "secret")


def config(**changes) -> EnvironmentConfig:
    return EnvironmentConfig(name=AGENT, **changes)


def task(behaviour: str):
    return next(each for each in list_tasks(config(), "train") if each.task_id == behaviour)


def played(behaviour: str, timeout_s: float = 60.0) -> AgentResult:
    async def play() -> AgentResult:
        async with EnvironmentHost(config()) as host:
            return await host.run_agent(task(behaviour), ENDPOINT, timeout_s)

    return asyncio.run(play())


async def settled(host: EnvironmentHost, **expected: int) -> None:
    deadline = time.monotonic() + 60
    while (now := {name: host.statistics()[name] for name in expected}) != expected:
        assert time.monotonic() < deadline, now
        await asyncio.sleep(0.05)


def test_a_module_with_run_and_tasks_is_an_agent_by_its_name():
    assert is_agent(config()) and not is_agent(EnvironmentConfig())
    function, told = agent_of(task("well"))
    assert function.__name__ == "run"
    assert told == {"id": "well", "split": "train", "nested": {"values": [1, 2]}}


def test_an_agent_says_what_a_perfect_model_would_answer_where_it_knows_that():
    async def ask(name: str, known: str):
        desk = EnvironmentConfig(name=name)
        tasks = {each.task_id: each for each in list_tasks(desk, "test")}
        async with EnvironmentHost(desk) as host:
            return [action.text for action in await host.gold(tasks[known])]

    assert has_gold(EnvironmentConfig(name="envs.examples.parcel_desk")) and not has_gold(config())
    answers = asyncio.run(ask("envs.examples.parcel_desk", "track-1002"))
    assert answers[0].startswith("track ") and answers[2] == f"Good news: {answers[1]}."
    with pytest.raises(EnvironmentFailed, match="gold"):
        asyncio.run(ask(AGENT, "well"))


@pytest.mark.parametrize("given", ["track 1", {"a": 1}, [1], [None]])
def test_a_gold_that_is_no_list_of_answers_is_refused(given):
    def gold(task):
        return given

    with pytest.raises(ContractBroken, match="gold"):
        check_gold(given, gold)


def test_a_module_without_a_package_is_found_too(tmp_path, monkeypatch):
    (tmp_path / "lonely_agent.py").write_text("def tasks(split): return [{'q': 1}, {'q': 2}]\ndef run(task, model): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [each.task_id for each in list_tasks(EnvironmentConfig(name="lonely_agent"), "train")] == ["0", "1"]


@pytest.mark.parametrize(
    ("behaviour", "result"),
    [
        ("well", AgentResult(1.0)),
        ("plain", AgentResult(0.25)),
        ("own_loop", AgentResult(0.5)),
        ("by_call", AgentResult(None, {"chatcmpl-1": 1.0, "chatcmpl-2": 0.5})),
        ("leaves_tasks", AgentResult(1.0)),
        ("leaves_thread", AgentResult(1.0)),
    ],
)
def test_an_agent_says_what_its_episode_was_worth(behaviour, result):
    assert played(behaviour) == result


@pytest.mark.parametrize(("behaviour", "said"), [("raises", "ValueError: no such order"), ("exits", "SystemExit: 3")])
def test_what_an_agent_raises_is_its_own_affair_with_the_place(behaviour, said):
    result = played(behaviour)
    assert result.reward is None and said in result.error and "agents_on_demand.py, line" in result.error
    assert "Traceback" in result.details


@pytest.mark.parametrize("behaviour", ["bad_reward", "nan", "nothing"])
def test_a_reward_that_is_none_breaks_the_episode_and_says_what_would_be_right(behaviour):
    with pytest.raises(EnvironmentFailed, match=r"gave .* as the reward; it must be a finite number"):
        played(behaviour)


def test_an_agent_that_ends_its_process_fails_the_episodes_of_that_process_and_the_host_goes_on():
    async def play():
        async with EnvironmentHost(config()) as host:
            with pytest.raises(EnvironmentFailed, match="died during run"):
                await host.run_agent(task("dies"), ENDPOINT, 60.0)
            result = await host.run_agent(task("well"), ENDPOINT, 60.0)
            assert host.statistics()["processes_replaced"] == 1
            return result

    assert asyncio.run(play()) == AgentResult(1.0)


def test_an_agent_that_takes_too_long_is_stopped_where_it_waits_and_its_process_stays():
    async def play():
        async with EnvironmentHost(config()) as host:
            (pid,) = host.process_ids()
            with pytest.raises(TimeoutError):
                await host.run_agent(task("sleeps"), ENDPOINT, 1.0)
            await settled(host, environments_open=0, processes_replaced=0)
            assert host.process_ids() == [pid]
            assert await host.run_agent(task("well"), ENDPOINT, 60.0) == AgentResult(1.0)

    asyncio.run(play())


@pytest.mark.parametrize("behaviour", ["hangs", "refuses_to_stop"])
def test_an_agent_that_does_not_give_way_is_given_up_with_its_process_once_the_others_there_are_done(behaviour, monkeypatch):
    monkeypatch.setattr(envs.host, "STOP_AGENT_TIMEOUT_S", 0.5)

    async def play():
        async with EnvironmentHost(config()) as host:
            (pid,) = host.process_ids()
            with pytest.raises(TimeoutError):
                await host.run_agent(task(behaviour), ENDPOINT, 1.0)
            await settled(host, environments_open=0, processes_replaced=1, environments_abandoned=1, processes=1)
            assert await host.run_agent(task("well"), ENDPOINT, 60.0) == AgentResult(1.0)
            deadline = time.monotonic() + 60
            while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    asyncio.run(play())


def test_an_agent_whose_episode_is_cancelled_is_stopped():
    async def play():
        async with EnvironmentHost(config()) as host:
            run = asyncio.create_task(host.run_agent(task("sleeps"), ENDPOINT, math.inf))
            await asyncio.sleep(0.5)
            assert host.statistics()["environments_open"] == 1
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            assert run.cancelled()
            await settled(host, environments_open=0, processes_replaced=0)

    asyncio.run(play())


def test_a_hundred_agents_of_one_process_wait_side_by_side():
    async def play():
        async with EnvironmentHost(config()) as host:
            began = time.monotonic()
            runs = [asyncio.create_task(host.run_agent(task("own_loop"), ENDPOINT, 60.0)) for _ in range(100)]
            results = await asyncio.gather(*runs)
            assert results == [AgentResult(0.5)] * 100 and time.monotonic() - began < 60
            await settled(host, environments_open=0, processes_replaced=0)

    asyncio.run(play())


def test_an_agent_cannot_change_what_the_next_one_is_told():
    told = agent_of(task("well"))[1]
    told["nested"]["values"].append(9)
    assert agent_of(task("well"))[1]["nested"]["values"] == [1, 2]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def run(task, model): return 1", "no function tasks; .* an agent has run and tasks"),
        ("def tasks(split): return []", "no function run"),
        ("run = 3\ndef tasks(split): return []", "no function run"),
        ("def tasks(split): return 1 / 0\ndef run(task, model): return 1", r"tasks\('train'\) raised ZeroDivisionError.*line 1"),
        ("def tasks(split): return 'abc'\ndef run(task, model): return 1", "must be a list of dictionaries"),
        ("def tasks(split): return [1]\ndef run(task, model): return 1", "must be a dictionary"),
        ("def tasks(split): return [{'id': 'a'}, {'id': 'a'}]\ndef run(task, model): return 1", "id 'a' more than once"),
        ("x = 1", "no function list_tasks; an environment has"),
    ],
)
def test_a_module_that_is_no_agent_is_refused_with_what_it_lacks(tmp_path, monkeypatch, request, source, message):
    name = f"no_agent_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=message):
        list_tasks(EnvironmentConfig(name=name), "train")


@pytest.mark.parametrize(("changes", "message"), [({"processes": 0}, "use at least 1"), ({"concurrency": 300}, "at least 2")])
def test_agents_have_processes_of_their_own_with_a_thread_for_each(changes, message):
    with pytest.raises(UserError, match=message):
        list_tasks(config(**changes), "train")


def test_an_anthropic_client_gets_the_address_that_it_adds_its_path_to():
    assert ENDPOINT.anthropic_base_url == "http://127.0.0.1:1"
