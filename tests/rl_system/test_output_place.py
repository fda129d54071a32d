import os
import re
from pathlib import Path

import pytest

from rl_system.config.load import build_config
from rl_system.errors import UserError
from rl_system.output_place import made_for, require_lasting, require_space, require_writable, tentative_contents
from rl_system.preflight import check_disk


def everything_below(directory: Path) -> list[tuple[str, float]]:
    return sorted((str(path), path.lstat().st_mtime) for path in directory.rglob("*"))


def test_a_place_that_takes_files_is_left_as_it_was(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    before = everything_below(tmp_path / "there" / "file"), sorted(tmp_path.rglob("*"))
    require_writable(tmp_path / "there", "output")
    require_writable(tmp_path / "new" / "below" / "run", "output")
    assert (everything_below(tmp_path / "there" / "file"), sorted(tmp_path.rglob("*"))) == before


@pytest.mark.parametrize("place", ["/etc/passwd/run", "/proc/run", "/sys/run", "/proc/self/run", "/dev/null/run"])
def test_a_place_where_nothing_can_be_written_is_refused_by_name(place):
    with pytest.raises(UserError, match=f"output: {place} cannot be written") as refused:
        require_writable(Path(place), "output")
    assert "\n" not in str(refused.value)


def test_a_file_in_the_way_is_refused_and_stays(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "run", file / "below" / "run"):
        with pytest.raises(UserError, match=re.escape(str(place))):
            require_writable(place, "output")
    assert file.read_text() == "mine" and list(tmp_path.iterdir()) == [file]


def test_a_link_into_nowhere_is_refused_and_stays(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="cannot be written"):
        require_writable(link, "output")
    assert list(tmp_path.iterdir()) == [link]


def test_a_name_that_the_file_system_cannot_have_is_refused(tmp_path):
    with pytest.raises(UserError, match="too long"):
        require_writable(tmp_path / ("x" * 300), "output")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write in every directory")
def test_a_read_only_directory_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Permission denied"):
        require_writable(tmp_path / "run", "output")


def test_what_came_into_a_directory_that_is_not_kept_goes_and_what_was_there_stays(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RuntimeError), tentative_contents(tmp_path, lambda: False):
        (tmp_path / "config.yaml").write_text("name: run")
        (tmp_path / "wandb" / "deep").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "wandb")
        raise RuntimeError("it did not begin")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with tentative_contents(tmp_path, lambda: True):
        (tmp_path / "config.yaml").write_text("name: run")
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "config.yaml"}


def test_folders_that_were_made_for_nothing_go_and_those_that_hold_something_stay(tmp_path):
    with made_for(tmp_path / "new" / "below" / "run"):
        (tmp_path / "new" / "below" / "run").mkdir(parents=True)
    assert list(tmp_path.iterdir()) == []
    with made_for(tmp_path / "new" / "below" / "run"):
        (tmp_path / "new" / "below" / "run").mkdir(parents=True)
        (tmp_path / "new" / "file").write_text("somebody else's")
    assert list(tmp_path.rglob("*")) == [tmp_path / "new", tmp_path / "new" / "file"]


def test_too_little_room_is_told_with_both_sizes(tmp_path):
    require_space(tmp_path / "not" / "there", 1, "output", "checkpoints")
    with pytest.raises(UserError, match=r"output: checkpoints need 1073741824\.00 GiB.*GiB free"):
        require_space(tmp_path / "not" / "there", 1 << 60, "output", "checkpoints")


def test_a_place_in_the_copy_that_ray_makes_of_a_working_directory_is_refused(tmp_path):
    package = Path("/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0123")
    with pytest.raises(UserError, match=f"{package}, Ray's temporary copy.*absolute path"):
        require_lasting(package / "runs" / "name", "output")
    with pytest.raises(UserError, match="temporary copy"):
        require_lasting(package, "output")
    require_lasting(package.parent, "output")
    require_lasting(tmp_path / "runs", "output")


@pytest.mark.parametrize(
    ("changes", "checkpoints"),
    [
        (["--steps", "9", "--checkpoint.every", "0", "--checkpoint.keep", "3"], 1),
        (["--steps", "9", "--checkpoint.every", "5", "--checkpoint.keep", "3"], 2),
        (["--steps", "9", "--checkpoint.every", "1", "--checkpoint.keep", "3"], 4),
        (["--steps", "9", "--checkpoint.every", "1", "--checkpoint.keep", "3", "--algorithm.advantage", "gae"], 8),
    ],
)
def test_the_checkpoints_that_are_on_the_disk_at_once_must_fit(monkeypatch, tmp_path, changes, checkpoints):
    needed = []
    monkeypatch.setattr("rl_system.preflight.require_space", lambda _, size, *__: needed.append(size))
    check_disk(build_config({"name": "run"}, ["--output", str(tmp_path), *changes]), 1000, 0)
    assert needed == [checkpoints * 1000 * (4 + 8)]
    (tmp_path / "run" / "checkpoints" / "step_4").mkdir(parents=True)
    needed.clear()
    check_disk(build_config({"name": "run"}, ["--output", str(tmp_path), *changes]), 1000, 4)
    per_checkpoint = 12000 * (2 if "gae" in changes else 1)
    written = {"0": 1, "5": 1, "1": 3}[changes[3]]
    assert needed == [written * per_checkpoint]
