"""A dialogue whose user is played by the small model, served by vLLM on this machine."""

import asyncio
import json
from pathlib import Path

import pytest

from actors.engine.user_server import UserServer, living
from envs.host import EnvironmentHost
from envs.protocol import Action
from envs.registry import list_tasks
from launch.evaluate import main
from rl_system.config.environment import EnvironmentConfig, UserConfig
from rl_system.errors import UserError
from rl_system.records import Ending
from rl_system.training.prepared import is_prepared

MODEL = "smollm2-135m-instruct"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _model() -> None:
    if not is_prepared(MODEL):
        pytest.skip(f"{MODEL} has not been prepared; python -m launch.prepare_model {MODEL}")


def test_a_small_model_plays_the_user_of_a_dialogue() -> None:
    async def run() -> None:
        user = UserConfig(kind="llm", model=MODEL, max_tokens=32, timeout_s=120.0, max_concurrency=2)
        server = UserServer(user, device="cpu", max_model_len=4096)
        async with server as address:
            pid = server._process.pid
            config = EnvironmentConfig(domain="mock", user=user.model_copy(update={"api_base": address}))
            async with EnvironmentHost(config) as host:
                environment = host.environment(list_tasks(config, "base")[0])
                opening, _ = await environment.reset()
                assert [message["role"] for message in opening.messages] == ["system", "assistant", "user"]
                assert opening.messages[-1]["content"].strip()
                observation = await environment.step(Action(text="What is the title of the task?"))
                assert observation.messages[-1]["role"] == "user" and observation.messages[-1]["content"].strip()
                counts = (await environment.score(Ending.MAX_TURNS)).counts
                assert counts["user_requests"] == 2 and counts["user_completion_tokens"] > 0
                await environment.close()
        assert living(pid) == []

    asyncio.run(run())


def test_evaluation_serves_the_user_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = f"--domain mock --split base --user llm --policy gold --max-tasks 2 --json --output {tmp_path} "
    words += f"--environment.user.model {MODEL} --environment.user.max_tokens 16 --environment.user.timeout_s 120"
    assert main(words.split()) == 0
    *episodes, totals = map(json.loads, capfd.readouterr().out.splitlines())
    assert len(episodes) == totals["episodes"] == 2
    assert "failed" not in totals["ended"] and totals["user_completion_tokens"] > 0


def test_a_user_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="/no/such/model"):
        UserServer(UserConfig(kind="llm", model="/no/such/model"), device="cpu")
