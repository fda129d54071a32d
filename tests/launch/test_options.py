"""Options of every command: what is out of bounds is one paragraph and exit code 2, before anything is read or started."""

import importlib

import pytest

NUMBERS = [
    ("launch.evaluate", "--policy gold", "--trials", "0"),
    ("launch.evaluate", "--policy gold", "--max-tasks", "0"),
    ("launch.evaluate", "--policy gold", "--max-tasks", "-3"),
    ("launch.evaluate", "--policy gold", "--temperature", "-1"),
    ("launch.evaluate", "--policy gold", "--temperature", "nan"),
    ("launch.plan", "--profile x.yaml", "--steps", "0"),
    ("launch.plan", "--profile x.yaml", "--steps", "10"),
    ("launch.plan", "--profile x.yaml", "--accelerators", "-2"),
    ("launch.plan", "--profile x.yaml", "--seed", "-1"),
    ("launch.rebalance", "--run x", "--to-rollout", "1.5"),
    ("launch.rebalance", "--run x", "--to-trainer", "one"),
    ("launch.rebalance", "--run x --to-trainer 1", "--wait", "inf"),
    ("launch.sweep", "--config x --variants y", "--seeds", "0,-1"),
    ("launch.sweep", "--config x --variants y", "--seeds", ""),
    ("launch.quickstart", "", "--dashboard-port", "70000"),
    ("launch.bench.environments", "", "--concurrency", "8,0"),
    ("launch.bench.environments", "", "--processes", "-1"),
    ("launch.bench.executor", "--trees x", "--repeats", "0"),
    ("launch.bench.executor", "--trees x", "--block-tokens", "-1"),
    ("launch.bench.executor", "--trees x", "--threads", "0"),
    ("launch.bench.executor", "--trees x", "--layers", "0"),
    ("launch.bench.gradients", "--trees x", "--tolerance", "0"),
    ("launch.bench.gradients", "--trees x", "--seed", "99999999999999999999"),
    ("launch.bench.partition", "--trees x", "--parts", "0"),
    ("launch.bench.partition", "--trees x", "--heads", "2.5"),
    ("launch.bench.trees", "--out x", "--turn", "0"),
    ("launch.bench.weights", "", "--workers", "1,x"),
    ("launch.bench.weights", "", "--repeats", "0"),
    ("launch.bench.allocation", "", "--seed", "-1"),
]


def run(module: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and standard error of a command, as its file or `launch.bench` starts it."""
    if module.startswith("launch.bench."):
        words, module = [module.rpartition(".")[2], *words], "launch.bench.__main__"
    code = importlib.import_module(module).main(words)
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


@pytest.mark.parametrize(("module", "others", "option", "value"), NUMBERS)
def test_a_number_out_of_bounds_is_refused_with_those_that_are_right(capsys, module, others, option, value):
    code, err = run(module, [*others.split(), f"{option}={value}"], capsys)
    assert code == 2 and err.count("\n") == 1
    assert err.startswith(f"error: {option} is {value or repr(value)}; give ") or f"is {value!r}" in err, err


@pytest.mark.parametrize(
    ("module", "words", "named"),
    [
        ("launch.report", [], "run directory"),
        ("launch.rebalance", ["--run", "x"], "--to-rollout"),
        ("launch.evaluate", ["--policy", "gold", "--user", "nobody"], "--user: invalid choice: 'nobody'"),
        ("launch.bench.executor", ["--trees", "x", "--method", "dense"], "--method"),
        ("launch.bench.gradients", ["--trees", "x", "--objective"], "--objective"),
    ],
)
def test_other_mistakes_in_options_are_one_paragraph_too(capsys, module, words, named):
    code, err = run(module, words, capsys)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and named in err, err


def test_an_objective_or_sizes_that_a_benchmark_cannot_use_are_named(tmp_path, capsys):
    tree = tmp_path / "tree.json"
    tree.write_text('{"name": "t", "vocab_size": 9, "sequences": [[1, 2, 3]], "response_start": [1]}')
    for words, named in (
        (["--objective", "ppo9"], "--objective is 'ppo9'"),
        (["--heads", "3"], "--heads is 3"),
        (["--head-dim", "3"], "--head-dim is 3"),
    ):
        code, err = run("launch.bench.gradients", ["--trees", str(tree), *words], capsys)
        assert code == 2 and named in err and err.count("\n") == 1, err
