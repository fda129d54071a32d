"""Variants of a configuration as one table, from runs on disk and through the command."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from launch import sweep
from rl_system.config.load import load_config
from rl_system.tracking.history import read_history
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
            config = load_config(Path(words[words.index("--config") + 1]), words[words.index("--resume") + 1 :])
            directory = write_run(tmp_path, name, steps=8, finished=True)
            (directory / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
        return codes.get(name, 0)

    monkeypatch.setattr(sweep, "run_program", call)
    return calls, codes


def test_a_row_has_every_seed_and_means_over_them(tmp_path):
    runs = [read_history(write_run(tmp_path, name, steps=8)) for name in ("a-0", "a-1")]
    header, _, row = table([Variant("a", runs)]).splitlines()
    cells = dict(zip(re.split(r" ?\| ?", header), re.split(r" ?\| ?", row), strict=True))
    assert cells["variant"] == "a"
    assert cells["held-out success, last"] == "75% 75%"
    assert cells["mean reward, first quarter → last"] == "0.19 → 0.94"
    assert cells["largest staleness"] == "1"


def test_a_run_is_finished_when_it_did_all_its_updates_and_all_that_follows_them(tmp_path):
    assert not finished(tmp_path / "absent", 4)
    assert not finished(write_run(tmp_path, "killed", steps=4), 4)
    directory = write_run(tmp_path, "a", steps=4, finished=True)
    assert finished(directory, 4) and finished(directory, 3) and not finished(directory, 5)


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


def test_a_sweep_that_was_killed_goes_on_with_the_runs_that_it_had_begun_by_the_same_command(command, started, tmp_path):
    calls, codes = started
    codes["small-0"] = -9
    assert sweep.main(command) == 1
    killed = write_run(tmp_path, "small-0", steps=3)
    assert sweep.main([*command, "--table"]) == 0  # of the one that is finished
    shutil.rmtree(killed)  # `started` writes it whole, as a run that is gone on with would
    codes.clear()
    assert sweep.main(command) == 0
    assert [words[words.index("--name") + 1] for words in calls] == ["plain-0", "small-0", "small-0"]
    assert all("--resume" in words for words in calls)


def test_a_finished_run_of_another_configuration_is_not_taken_for_one_of_the_sweep(command, started, capsys):
    calls, _ = started
    assert sweep.main([*command, "--only", "plain"]) == 0
    assert sweep.main([*command, "--optimizer.learning_rate", "3e-4"]) == 2
    err = capsys.readouterr().err
    assert "plain-0 is finished with another configuration" in err
    assert "optimizer.learning_rate was 1e-05, the sweep has 0.0003" in err and len(calls) == 1


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
