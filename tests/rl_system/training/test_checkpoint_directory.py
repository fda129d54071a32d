import json
from pathlib import Path

import pytest

from rl_system.errors import UserError
from rl_system.training.checkpoint_directory import (
    MANIFEST,
    Checkpoint,
    latest_checkpoint,
    list_checkpoints,
    newest_sound,
    open_checkpoint,
    put_aside,
    remove_old,
    step_directory,
    write_manifest,
)
from rl_system.training.complete_directory import complete_directory, remove_abandoned


def save(checkpoints: Path, step: int, run: str = "run") -> Path:
    final = step_directory(checkpoints, step)
    with complete_directory(final) as staging:
        (staging / "state").mkdir()
        (staging / "state" / "groups").write_bytes(bytes(range(256)) * 8)
        write_manifest(staging, Checkpoint(final, run, step, state={"cursor": [step, 2]}, learner={"version": step}))
    return final


def test_what_was_saved_comes_back(tmp_path):
    checkpoint = open_checkpoint(save(tmp_path, 3), run="run")
    assert (checkpoint.run, checkpoint.step, checkpoint.state) == ("run", 3, {"cursor": [3, 2]})
    assert checkpoint.learner == {"version": 3}
    assert checkpoint.blob("groups") == bytes(range(256)) * 8


def test_the_latest_is_the_one_of_the_highest_step_not_of_the_last_name(tmp_path):
    for step in (9, 10, 2):
        save(tmp_path, step)
    assert latest_checkpoint(tmp_path) == tmp_path / "step_10"
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_2", "step_9", "step_10"]


def test_there_is_no_latest_where_nothing_was_saved(tmp_path):
    assert latest_checkpoint(tmp_path) is None and latest_checkpoint(tmp_path / "absent") is None


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 3, 10):
        save(tmp_path, step)
    remove_old(tmp_path, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_3", "step_10"]


def test_a_directory_still_being_written_is_no_checkpoint(tmp_path):
    save(tmp_path, 1)
    with complete_directory(tmp_path / "step_2") as staging:
        (staging / "file").write_text("half")
        assert latest_checkpoint(tmp_path) == tmp_path / "step_1"


def test_a_failed_writer_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), complete_directory(tmp_path / "step_1") as staging:
        (staging / "file").write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_writing_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 1, run="old")
    save(tmp_path, 1, run="new")
    assert open_checkpoint(tmp_path / "step_1").run == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_remains_of_killed_writers_are_removed_and_checkpoints_are_not(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "step_2.incomplete-123-abcd").mkdir()
    remove_abandoned(tmp_path, older_than_s=3600)
    assert (tmp_path / "step_2.incomplete-123-abcd").exists()
    remove_abandoned(tmp_path, older_than_s=0)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "shortened": (lambda path: (path / "state/groups").write_bytes(b"short"), "groups has 5 bytes instead of 2048"),
    "bit flipped": (lambda path: flip_a_bit(path / "state/groups"), "groups does not match its checksum"),
    "file gone": (lambda path: (path / "state/groups").unlink(), "groups is missing"),
    "manifest torn": (lambda path: (path / MANIFEST).write_text('{"format": "rl-sys'), "cannot be read"),
    "manifest gone": (lambda path: (path / MANIFEST).unlink(), "is damaged: it holds no checkpoint.json"),
    "foreign": (lambda path: (path / MANIFEST).write_text('{"weights": 1}'), "was not written by this system"),
    "a list": (lambda path: (path / MANIFEST).write_text("[1]"), "was not written by this system"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_checkpoint_is_refused_by_name(damage, tmp_path):
    path = save(tmp_path, 4)
    spoil, reason = DAMAGES[damage]
    spoil(path)
    with pytest.raises(UserError, match=f"step_4.*{reason}"):
        open_checkpoint(path)


@pytest.mark.parametrize("damage", ["shortened", "bit flipped", "file gone", "manifest torn", "manifest gone"])
def test_behind_a_damaged_checkpoint_the_one_before_is_found_and_the_damage_told(damage, tmp_path):
    for step in (2, 4, 6):
        save(tmp_path, step)
    spoil, reason = DAMAGES[damage]
    for step in (4, 6):
        spoil(tmp_path / f"step_{step}")
    checkpoint, damaged = newest_sound(tmp_path, "run")
    assert checkpoint.step == 2
    assert list(damaged) == [tmp_path / "step_6", tmp_path / "step_4"]
    assert all(reason.removeprefix("is damaged: ") in what for what in damaged.values())


def test_where_every_checkpoint_is_damaged_nothing_is_begun_anew_by_itself(tmp_path):
    for step in (2, 4):
        flip_a_bit(save(tmp_path, step) / "state/groups")
    with pytest.raises(UserError, match="every checkpoint in .* is damaged .step_4: .*; step_2: .*move them away"):
        newest_sound(tmp_path, "run")
    assert newest_sound(tmp_path / "absent", "run") == (None, {})


def test_a_foreign_checkpoint_is_not_passed_over(tmp_path):
    save(tmp_path, 2)
    save(tmp_path, 4, run="other")
    with pytest.raises(UserError, match="belongs to run 'other'"):
        newest_sound(tmp_path, "run")


def test_a_damaged_checkpoint_that_is_put_aside_is_none_any_more_and_stays(tmp_path):
    for name in ("damaged_step_4", "damaged_step_4_1"):
        aside = put_aside(save(tmp_path, 4))
        assert aside == tmp_path / name and (aside / MANIFEST).exists()
    assert list_checkpoints(tmp_path) == []


def test_a_kill_while_an_old_checkpoint_is_removed_leaves_no_half_of_it(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        save(tmp_path, step)

    def killed(path, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_old(tmp_path, keep=1)
    monkeypatch.undo()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_2", "step_3"]
    remove_abandoned(tmp_path, older_than_s=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_2", "step_3"]


def test_a_checkpoint_of_another_release_is_refused(tmp_path):
    path = save(tmp_path, 1)
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(manifest | {"format_version": 99}))
    with pytest.raises(UserError, match="format version 99"):
        open_checkpoint(path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="belongs to run 'other', not to 'run'"):
        open_checkpoint(save(tmp_path, 1, run="other"), run="run")
