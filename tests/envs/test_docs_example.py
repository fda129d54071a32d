"""The example of an environment in the docs does what they say, copied as it stands there."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from envs.host import EnvironmentHost
from envs.protocol import Action, ToolCall
from envs.registry import list_tasks, make_environment
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


def test_a_second_call_after_the_right_one_does_not_take_the_end_back(example):
    environment = make_environment(example, list_tasks(example, "test")[0])
    environment.reset()
    calls = tuple(ToolCall("guess", {"number": number}) for number in (environment.number, 1, "x"))
    environment.step(Action(tool_calls=calls))
    assert environment.observe().ended is Ending.AGENT_STOP and environment.score(Ending.AGENT_STOP).reward == 1.0


def test_the_commands_of_the_guide_do_what_it_says(example, tmp_path):
    """In a folder that holds the package, as it says; training itself is a dry run here."""
    (commands,) = re.findall(r"```bash\n(python -m launch.evaluate --environment.name .*?)```", GUIDE.read_text(), re.DOTALL)
    listed, played, checked, _ = commands.splitlines()
    (tmp_path / "configs").symlink_to(GUIDE.parents[1] / "configs")
    environment = os.environ | {"PYTHONPATH": str(GUIDE.parents[1])}

    def run(command: str) -> str:
        words = [sys.executable, *command.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(listed).split() == [str(number) for number in range(81, 101)]
    assert "success_rate             1.000" in run(played)
    assert "tasks: 80 to train on, 20 to evaluate on" in run(checked)
