"""The example of an environment in the docs does what they say, copied as it stands there."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from envs.host import EnvironmentHost
from envs.registry import list_tasks
from rl_system.chat.agent import Limits
from rl_system.chat.demonstration import demonstrate
from rl_system.chat.renderer import Renderer
from rl_system.config.environment import EnvironmentConfig
from rl_system.config.model import ModelConfig
from rl_system.config.rollout import RolloutConfig
from rl_system.records import Ending
from rl_system.training.loading import load_tokenizer
from rl_system.training.prepared import prepare_model

GUIDE = Path(__file__).parents[2] / "docs" / "environments.md"


@pytest.fixture
def example(tmp_path, monkeypatch) -> EnvironmentConfig:
    (code,) = re.findall(r"```python\n# guessing\.py.*?\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(code.splitlines()) < 60
    package = tmp_path / "examples"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "guessing.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield EnvironmentConfig(name="examples.guessing", processes=0)
    for name in [name for name in sys.modules if name.startswith("examples")]:
        del sys.modules[name]


def test_the_example_environment_of_the_docs_is_solved_by_its_own_demonstration(example):
    prepare_model("smollm2-135m-instruct")
    renderer = Renderer(load_tokenizer(ModelConfig()))
    limits = Limits.of(example, RolloutConfig(), 2048)

    async def play():
        async with EnvironmentHost(example) as host:
            tasks = list_tasks(example, "test")
            return [await demonstrate(task, host.environment(task), renderer, limits) for task in tasks[:3]]

    for episode in asyncio.run(play()):
        assert episode.reward == 1.0 and episode.ended is Ending.AGENT_STOP
