import os
from dataclasses import replace
from pathlib import Path

import pytest

from rl_system import shared_files
from rl_system.shared_files import MARKER, SharedFiles


@pytest.fixture
def shared(tmp_path, monkeypatch) -> SharedFiles:
    monkeypatch.setattr(shared_files, "VISIBLE_WITHIN_S", 0.0)
    run, model = tmp_path / "run", tmp_path / "model"
    run.mkdir()
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"12345678")
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    return SharedFiles.mark(run, model, tmp_path / "template.jinja", None)


def test_a_node_that_sees_all_of_it_is_fit_and_nothing_but_the_marker_is_there(shared):
    assert shared.missing() is None
    assert [path.name for path in shared.directory.iterdir()] == [MARKER]


def test_a_node_without_the_run_directory_is_told(shared, tmp_path):
    shared.directory.rename(tmp_path / "elsewhere")
    assert "does not see the run's directory" in shared.missing() and "--output" in shared.missing()


def test_a_directory_of_the_same_name_on_the_nodes_own_disk_is_not_taken_for_the_shared_one(shared):
    (shared.directory / MARKER).write_text("what an earlier run left on that disk")
    assert "does not see the run's directory" in shared.missing()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write in every directory")
def test_a_node_that_may_only_read_is_told(shared):
    shared.directory.chmod(0o500)
    assert "cannot write" in shared.missing()


@pytest.mark.parametrize("name", ["model/config.json", "model/model.safetensors", "template.jinja"])
def test_a_file_that_actors_read_is_missed_by_name(shared, tmp_path, name):
    (tmp_path / name).unlink()
    assert f"does not have {tmp_path / name}" in shared.missing()


def test_another_file_of_the_same_name_is_told(shared, tmp_path):
    (tmp_path / "model" / "model.safetensors").write_bytes(b"123")
    assert f"holds another {tmp_path / 'model' / 'model.safetensors'}" in shared.missing()


def test_other_code_is_told_with_its_place(shared):
    other = replace(shared, code="0" * 64)
    assert "runs other code" in other.missing() and str(Path(shared_files.__file__).parents[1]) in other.missing()
