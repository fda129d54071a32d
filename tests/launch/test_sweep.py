"""Variants of a configuration as one table, from runs on disk and through the command."""

import re

import pytest
import yaml

from launch import sweep
from rl_system.tracking.history import read_history
from rl_system.tracking.report import write_report
from rl_system.tracking.sweep import Variant, finished, table
from tests.rl_system.tracking.runs import write_run


@pytest.fixture
def variants(tmp_path):
    path = tmp_path / "variants.yaml"
    path.write_text("plain: {}\nsmall: {optimizer.learning_rate: 1.0e-6, algorithm.objective: reinforce}\n")
    return path


@pytest.fixture
def command(tmp_path, variants):
    config = tmp_path / "base.yaml"
    config.write_text(yaml.safe_dump({"output": str(tmp_path), "steps": 8}))
    return ["--config", str(config), "--variants", str(variants)]


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Commands that were started; each leaves a finished run, or ends with the code in `codes` by the run's name."""
    calls, codes = [], {}

    def call(words):
        name = words[words.index("--name") + 1]
        calls.append(words)
        if name not in codes:
            write_report(write_run(tmp_path, name, steps=8))
        return codes.get(name, 0)

    monkeypatch.setattr(sweep.subprocess, "call", call)
    return calls, codes


def test_a_row_has_every_seed_and_means_over_them(tmp_path):
    runs = [read_history(write_run(tmp_path, name, steps=8)) for name in ("a-0", "a-1")]
    header, _, row = table([Variant("a", runs)]).splitlines()
    cells = dict(zip(re.split(r" ?\| ?", header), re.split(r" ?\| ?", row), strict=True))
    assert cells["variant"] == "a"
    assert cells["held-out success, last"] == "75% 75%"
    assert cells["mean reward, first quarter → last"] == "0.19 → 0.94"
    assert cells["largest staleness"] == "1"


def test_a_run_is_finished_when_it_did_all_its_updates_and_has_a_report(tmp_path):
    directory = write_run(tmp_path, "a", steps=4)
    assert not finished(directory)
    write_report(directory)
    assert finished(directory)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    (directory / "config.yaml").write_text(yaml.safe_dump(config | {"steps": 5}))
    assert not finished(directory)


def test_every_variant_runs_once_for_every_seed_with_its_keys(command, started, capsys):
    calls, _ = started
    assert sweep.main([*command, "--seeds", "0,1", "--evaluation.before", "false"]) == 0
    assert [words[words.index("--name") + 1] for words in calls] == ["plain-0", "small-0", "plain-1", "small-1"]
    words = calls[1]
    assert words[words.index("--algorithm.objective") + 1] == '"reinforce"'
    assert float(words[words.index("--optimizer.learning_rate") + 1]) == 1e-6
    assert words[words.index("--evaluation.before") + 1] == "false"
    assert capsys.readouterr().out.count("| 75% 75% |") == 2
    assert sweep.main([*command, "--seeds", "0,1", "--evaluation.before", "false"]) == 0
    assert len(calls) == 4


def test_a_sweep_stops_at_a_run_that_fails_and_goes_on_from_there(command, started, capsys):
    calls, codes = started
    codes["small-0"] = 2
    assert sweep.main(command) == 1
    assert "small-0 ended with exit code 2" in capsys.readouterr().err
    codes.clear()
    assert sweep.main(command) == 0
    assert [words[words.index("--name") + 1] for words in calls] == ["plain-0", "small-0", "small-0"]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("plain: 3\n", [], "variant plain is 3"),
        ("plain: {optimizer.learning_rat: 1}\n", [], "did you mean optimizer.learning_rate"),
        ("plain: {}\n", ["--only", "plane"], "--only names 'plane'"),
        ("plain: {}\n", ["--table"], "no run of"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(variants, command, started, capsys, text, arguments, message):
    variants.write_text(text)
    assert sweep.main([*command, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not started[0]


def test_the_algorithms_that_the_readme_compares_are_valid_variants_of_the_default_run(started, tmp_path):
    command = ["--config", "configs/tau2_mock_cpu.yaml", "--variants", "configs/sweeps/algorithms.yaml"]
    assert sweep.main([*command, "--output", str(tmp_path), "--steps", "8"]) == 0
    assert len(started[0]) == 8
