"""What an environment does wrong is told in one line that names what it gave, where, and what would be right."""

from __future__ import annotations

import asyncio
import inspect
import sys
import textwrap
from pathlib import Path

import pytest

from envs.host import EnvironmentHost
from envs.protocol import EnvironmentFailed
from envs.registry import list_tasks
from rl_system.chat.scripted import gold, play_script
from rl_system.config.environment import EnvironmentConfig
from rl_system.errors import UserError
from rl_system.records import Episode, Task
from tests.envs import breaking

FILE = "tests/envs/breaking.py"


def failure(how: str, *, processes: int = 0, step_timeout_s: float = 60.0) -> EnvironmentFailed:
    """Of the episode of the task `how`, played by its demonstration."""

    async def play() -> None:
        config = EnvironmentConfig(name=breaking.__name__, processes=processes, step_timeout_s=step_timeout_s)
        async with EnvironmentHost(config) as host:
            environment = host.environment(Task(breaking.__name__, "none", how, "train"))
            await environment.reset()
            for action in await environment.demonstration():
                observation = await environment.step(action)
            await environment.score(observation.ended)
            await environment.close()

    with pytest.raises(EnvironmentFailed) as caught:
        asyncio.run(asyncio.wait_for(play(), 60))
    return caught.value


def line_of(code: str) -> int:
    """Where `code` stands in the environment's file."""
    (line,) = [number for number, text in enumerate(inspect.getsource(breaking).splitlines(), 1) if code in text]
    return line


@pytest.mark.parametrize(
    ("how", "method", "right"),
    [
        ("tools None", "Breaking.tools", "a list of tool schemas"),
        ("tools a dict", "Breaking.tools", "a list of tool schemas"),
        ("tools without form", "Breaking.tools", '"type": "function"'),
        ("tools twice", "Breaking.tools", "two named 'look'"),
        ("tools no schema", "Breaking.tools", "'integr'"),
        ("tools functions", "Breaking.tools", "plain data"),
        ("observe None", "Breaking.observe", "Observation"),
        ("observe a str", "Breaking.observe", "Observation"),
        ("observe no message", "Breaking.observe", "at least one"),
        ("observe messages of text", "Breaking.observe", '"content"'),
        ("observe message without content", "Breaking.observe", '"content"'),
        ("observe content None", "Breaking.observe", '"content"'),
        ("observe role agent", "Breaking.observe", "assistant"),
        ("observe a set", "Breaking.observe", "plain data"),
        ("observe ended True", "Breaking.observe", "AGENT_STOP"),
        ("observe ended failed", "Breaking.observe", "AGENT_STOP"),
        ("observe errors None", "Breaking.observe", "whole number"),
        ("score a float", "Breaking.score", "Score(1.0)"),
        ("score None", "Breaking.score", "Score(1.0)"),
        ("score NaN", "Breaking.score", "finite number"),
        ("score text", "Breaking.score", "finite number"),
        ("score part NaN", "Breaking.score", "finite number"),
        ("score parts a list", "Breaking.score", "dict"),
        ("score count a float", "Breaking.score", "whole number"),
        ("demonstration None", "Breaking.demonstration", "list of envs.protocol.Action"),
        ("demonstration of text", "Breaking.demonstration", "envs.protocol.Action"),
        ("demonstration of a call", "Breaking.demonstration", "envs.protocol.Action"),
        ("demonstration with text None", "Breaking.demonstration", "str"),
        ("demonstration with text as calls", "Breaking.demonstration", "dict of arguments"),
    ],
)
def test_what_is_given_wrongly_is_named_with_its_place_and_what_would_be_right(how: str, method: str, right: str) -> None:
    text = str(failure(how))
    line = line_of(f"def {method.partition('.')[2]}(self") if "score" not in method else line_of("def score(self, ended")
    assert f"{method} ({FILE}, line {line})" in text and right in text and "\n" not in text


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("reset raises", "reset raised RuntimeError: no such database ({file}, line {line}, in reset)"),
        ("step raises", "step raised KeyError: 'missing' ({file}, line {line}, in step)"),
        ("step exits", "step raised SystemExit: enough ({file}, line {line}, in step)"),
        ("make raises", "reset raised KeyError: 'make raises' ({file}, line {line}, in make_environment)"),
    ],
)
def test_an_exception_is_told_in_one_line_with_its_place_and_kept_whole(how: str, told: str, processes: int) -> None:
    code = {"reset raises": "raise RuntimeError", "step raises": '{}["missing"]', "step exits": "sys.exit("}
    line = line_of(code.get(how, "raise KeyError(task"))
    error = failure(how, processes=processes)
    assert str(error) == told.format(file=FILE, line=line)
    assert error.details.startswith("Traceback") and f"line {line}" in error.details


def test_a_method_that_is_missing_or_takes_other_arguments_is_named() -> None:
    assert "has no method tools" in str(failure("make unfinished"))
    assert "(NoneType), which has no method reset" in str(failure("make None"))
    text = str(failure("score without parameter"))
    assert "takes 1 positional argument but 2 were given" in text and f"({FILE}, line" in text


def test_a_process_that_ends_tells_how() -> None:
    assert "died during step (exit code 9)" in str(failure("step dies", processes=1))


def test_a_process_that_crashes_tells_where() -> None:
    error = failure("step crashes", processes=1)
    assert f"killed by SIGSEGV, {FILE}, line {line_of('ctypes.string_at(0)')}, in step" in str(error)
    assert "Segmentation fault" in error.details


def test_an_environment_that_hangs_tells_where() -> None:
    error = failure("step hangs", processes=1, step_timeout_s=1.0)
    assert str(error) == f"step took longer than 1 s ({FILE}, line {line_of('time.sleep(0.01)')}, in step)"
    assert "time.sleep(0.01)" in error.details


def test_an_environment_that_hangs_outside_of_python_is_given_up_all_the_same() -> None:
    assert str(failure("step hangs in C", processes=1, step_timeout_s=1.0)) == "step took longer than 1 s"


def test_a_demonstration_may_be_empty() -> None:
    async def play() -> Episode:
        config = EnvironmentConfig(name=breaking.__name__, processes=0)
        async with EnvironmentHost(config) as host:
            task = Task(breaking.__name__, "none", "demonstration empty", "train")
            return await play_script(task, 0, 0, host.environment(task), gold)

    assert asyncio.run(play()).ended == "max_turns"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes an environment's module and returns the refusal of its tasks, and its path."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def refusal(code: str, name: str = "broken_module.game") -> str:
        package = tmp_path / "broken_module"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        (package / "game.py").write_text(textwrap.dedent(code))
        with pytest.raises(UserError) as error:
            list_tasks(EnvironmentConfig(name=name), "train")
        assert "\n" not in str(error.value) and "environment.name" in str(error.value)
        return str(error.value)

    yield refusal
    for name in [name for name in sys.modules if name.startswith("broken_module")]:
        del sys.modules[name]


HEAD = "from rl_system.records import Task\n\ndef make_environment(config, task):\n    pass\n\n\n"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def list_tasks(config, split)\n    return []\n", "SyntaxError: expected ':' (broken_module/game.py, line 1)"),
        ("import no_such_library\n", "No module named 'no_such_library' (broken_module/game.py, line 1, in <module>)"),
        ("from envs.protocol import Reward\n", "cannot import name 'Reward'"),
        ("TASKS = open('tasks.json')\n", "FileNotFoundError"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (broken_module/game.py, line 2, in <module>)"),
        ("def list_tasks(config, split):\n    return []\n", "no function make_environment"),
        (HEAD + "list_tasks = []", "no function list_tasks"),
        (HEAD + "def list_tasks(config):\n    return []", "takes 1 positional argument but 2 were given (broken_module/game"),
        (HEAD + "def list_tasks(config, split):\n    return 1 / 0", "division by zero (broken_module/game.py, line 8, in list"),
        (HEAD + "def list_tasks(config, split):\n    yield 1 / 0", "division by zero (broken_module/game.py, line 8, in list"),
        (HEAD + "def list_tasks(config, split):\n    return None", "gave None (NoneType); it must be a list of"),
        (HEAD + "def list_tasks(config, split):\n    return ['easy']", "gave 'easy' (str) in its list; it must be a rl_system"),
        (
            HEAD + "def list_tasks(config, split):\n    return [Task(__name__, 'd', 1, split)]",
            "gave 1 (int) as task_id of a task; it must be text",
        ),
        (
            HEAD + "def list_tasks(config, split):\n    return [Task(__name__, 'd', str(i % 2), split) for i in range(4)]",
            "gave 4 tasks, but task_id '0', '1' more than once",
        ),
        (
            HEAD + "def list_tasks(config, split):\n    return [Task('game', 'd', '1', split)]",
            "gave tasks whose environment is 'game'",
        ),
    ],
)
def test_a_module_that_cannot_list_its_tasks_is_refused_with_the_place(module, code: str, told: str) -> None:
    assert told in module(code)


def test_a_module_that_is_not_found_is_refused_with_where_it_belongs(module) -> None:
    for name, missing in (("broken_module.other", "broken_module.other"), ("no_such_package.game", "no_such_package")):
        text = module("", name)
        assert f"no module {missing!r}" in text and "PYTHONPATH" in text
