"""An estimator, objective or correction that cannot work is found on made-up values, before anything starts."""

from __future__ import annotations

import inspect
import itertools
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_system.algorithms import registry
from rl_system.algorithms.correction import correction
from rl_system.algorithms.estimator import estimator
from rl_system.algorithms.surrogate import sequence_mean, surrogate
from rl_system.algorithms.trial import check_algorithm
from rl_system.config.algorithm import AlgorithmConfig
from rl_system.errors import UserError

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "algorithms.md"


@pytest.mark.parametrize("objective", registry.names("objectives"))
def test_everything_that_is_there_passes_with_everything_else(objective: str) -> None:
    for advantage, correction_ in itertools.product(registry.names("advantages"), registry.names("corrections")):
        if not (advantage == "gae" and objective == "sft"):
            check_algorithm(AlgorithmConfig(advantage=advantage, objective=objective, correction=correction_))
    for keys in ({"kl_coefficient": 0.1}, {"proximal": "loglinear"}, {"entropy_coefficient": 0.1, "clip_low": 3e-4}):
        check_algorithm(AlgorithmConfig(objective=objective, **keys), group_size=2)


@surrogate(anchor="behaviour")
def raises(tokens, config, meter):
    return tokens.weights * tokens.advantages


@surrogate(anchor="behaviour")
def takes_too_little(tokens, config):
    return -tokens.logprobs


@surrogate(anchor="behaviour")
def gives_a_mean(tokens, config, meter):
    return -(tokens.logprobs * tokens.advantages).mean()


@surrogate(anchor="behaviour")
def gives_numpy(tokens, config, meter):
    return tokens.advantages.numpy()


@surrogate(anchor="behaviour")
def has_no_graph(tokens, config, meter):
    return -tokens.log_ratio().exp().detach() * tokens.advantages


@surrogate(anchor="behaviour")
def is_not_finite(tokens, config, meter):
    return (tokens.logprobs + 0.5).log()


@surrogate(anchor="behaviour")
def couples_without_a_word(tokens, config, meter):
    return -sequence_mean(tokens.log_ratio(), tokens.sequence).exp() * tokens.advantages


@surrogate(anchor="behaviour", coupled=True)
def looks_at_other_sequences(tokens, config, meter):
    return -(tokens.log_ratio() - tokens.log_ratio().mean()).exp() * tokens.advantages


@surrogate(anchor="behaviour")
def cannot_take_none(tokens, config, meter):
    return -tokens.logprobs / tokens.logprobs.detach().abs().max()


@surrogate(anchor="proximal")
def has_gradients_that_are_not_finite(tokens, config, meter):
    return (tokens.logprobs - tokens.logprobs.detach()).sqrt()


@estimator(compares=True)
def advantages_of_one(rewards):
    return rewards.mean()


@estimator(compares=True)
def advantages_divided_by_nothing(rewards):
    with np.errstate(all="ignore"):
        return rewards / (rewards * 0)


@correction()
def factor_of_all(log_ratio, sequence, config, meter):
    return log_ratio.exp() / log_ratio.exp().sum()


@correction()
def factor_of_one(log_ratio, sequence, config, meter):
    return torch.tensor(1.0)


WRONG = [
    ("objectives", raises, "has no attribute 'weights'"),
    ("objectives", takes_too_little, "takes 2 positional arguments but 3 were given"),
    ("objectives", gives_a_mean, "gave a Tensor [] for 8 pairs; it must be the loss of each pair, a tensor [8]"),
    ("objectives", gives_numpy, "gave a ndarray [8]"),
    ("objectives", has_no_graph, "without a graph to the current logprobs"),
    ("objectives", is_not_finite, "all finite"),
    ("objectives", couples_without_a_word, "does not say coupled=True"),
    ("objectives", looks_at_other_sequences, "together with tokens of other sequences"),
    ("objectives", cannot_take_none, "max"),
    ("objectives", has_gradients_that_are_not_finite, "gradients that are not finite"),
    ("advantages", advantages_of_one, "for the rewards of 4 members; it must be an array [4]"),
    ("advantages", advantages_divided_by_nothing, "advantages must be finite"),
    ("corrections", factor_of_all, "does not say coupled=True"),
    ("corrections", factor_of_one, "it must be a factor for each pair, a tensor [8]"),
]


@pytest.mark.parametrize(("kind", "function", "told"), WRONG, ids=[function.__name__ for _, function, _ in WRONG])
def test_what_cannot_work_is_refused_with_its_key_and_place(monkeypatch, kind, function, told) -> None:
    real = registry.find
    monkeypatch.setattr(registry, "find", lambda asked, name: function if asked == kind else real(asked, name))
    with pytest.raises(UserError) as refusal:
        check_algorithm(AlgorithmConfig())
    text = str(refusal.value)
    assert registry.FIELDS[kind] in text and told in text and "\n" not in text
    first = inspect.getsourcelines(function)[1]
    if "gradients" not in function.__name__:
        lines = range(first, first + len(inspect.getsource(function).splitlines()))
        assert any(f"tests/rl_system/algorithms/test_trial.py, line {line}" in text for line in lines), text


def test_a_file_that_cannot_be_imported_or_defines_something_else_is_refused_with_its_place(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "rl_system", tmp_path / "rl_system", ignore=shutil.ignore_patterns("__pycache__"))
    files = {
        "no_imports": "@surrogate(anchor='behaviour')\ndef no_imports(tokens, config, meter):\n    return 0\n",
        "no_syntax": "def no_syntax(:\n",
        "no_function": "import torch\n",
        "no_declaration": "def no_declaration(tokens, config, meter):\n    return -tokens.logprobs\n",
    }
    for name, code in files.items():
        (tmp_path / "rl_system" / "algorithms" / "objectives" / f"{name}.py").write_text(code)
    script = f"""
        from rl_system.algorithms import registry
        from rl_system.errors import UserError
        for name in {list(files)}:
            try:
                registry.find("objectives", name)
            except UserError as error:
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, text=True,
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    folder = "rl_system/algorithms/objectives"
    assert len(lines) == 4
    assert f"NameError: name 'surrogate' is not defined ({folder}/no_imports.py, line 1, in <module>)" in lines[0]
    assert "SyntaxError" in lines[1] and f"({folder}/no_syntax.py, line 1)" in lines[1]
    assert f"{folder}/no_function.py defines no function no_function" in lines[2]
    assert f"no_declaration ({folder}/no_declaration.py, line 1) is not declared by @surrogate" in lines[3]


def test_the_objective_of_the_guide_is_complete(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n# \S+/objectives/my_objective\.py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    shutil.copytree(ROOT / "rl_system", tmp_path / "rl_system", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "envs", tmp_path / "envs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "rl_system" / "algorithms" / "objectives" / "my_objective.py").write_text(code)
    script = """
        from rl_system.algorithms.trial import check_algorithm
        from rl_system.config.algorithm import AlgorithmConfig
        check_algorithm(AlgorithmConfig(objective="my_objective"))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, text=True,
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
