"""The file through which a node's workers share weights, with real processes."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from actors.engine.errors import WeightsRejected
from actors.engine.run_memory import locked
from actors.engine.weight_file import weight_file
from rl_system.errors import UserError
from rl_system.training.model_files import write_safetensors

ARRAYS = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b.weight": np.linspace(0, 1, 5).astype(ml_dtypes.bfloat16),
    "empty": np.zeros((0, 3), np.float16),
    "scalar": np.array(2.5),
    "strided": np.arange(12.0).reshape(3, 4)[:, ::2],
}


def held_by_another_process(directory: Path, seconds: float) -> multiprocessing.Process:
    """A process that has the file `one` open for `seconds`. Returns once it has."""
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(directory, seconds))
    process.start()
    deadline = time.monotonic() + 10
    while not (directory / "one.safetensors").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def _hold(directory: Path, seconds: float) -> None:
    with weight_file(directory, "one", ARRAYS, 5):
        time.sleep(seconds)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[multiprocessing.Process]:
    process = held_by_another_process(tmp_path, 1.0)
    yield process
    process.join(timeout=10)


def test_what_is_written_is_what_safetensors_reads(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "file", ARRAYS)
    with safe_open(tmp_path / "file", framework="pt") as tensors:
        assert set(tensors.keys()) == set(ARRAYS)
        for name, array in ARRAYS.items():
            tensor = tensors.get_tensor(name)
            assert tuple(tensor.shape) == array.shape and str(tensor.dtype) == f"torch.{array.dtype.name}"
            np.testing.assert_array_equal(tensor.double().numpy(), array.astype(np.float64))


def test_the_file_is_gone_when_its_only_reader_is_done(tmp_path: Path) -> None:
    with weight_file(tmp_path, "one", ARRAYS, 5) as path:
        assert path.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]


def test_a_second_worker_reads_the_file_that_the_first_one_wrote(
    tmp_path: Path, other: multiprocessing.Process
) -> None:
    inode = (tmp_path / "one.safetensors").stat().st_ino
    with weight_file(tmp_path, "one", ARRAYS, 5) as path:
        assert path.stat().st_ino == inode


def test_the_file_stays_until_the_last_reader_is_done(tmp_path: Path, other: multiprocessing.Process) -> None:
    with weight_file(tmp_path, "one", ARRAYS, 5) as path:
        pass
    assert path.exists()
    other.join(timeout=10)
    assert not path.exists()


def test_a_file_that_a_killed_worker_left_goes_with_the_next_update(tmp_path: Path) -> None:
    process = held_by_another_process(tmp_path, 60)
    process.kill()
    process.join(timeout=10)
    (tmp_path / "half.part").write_bytes(b"half")
    with weight_file(tmp_path, "two", ARRAYS, 5) as path:
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["lock", path.name]


def test_a_file_under_its_name_is_complete_also_when_its_writer_fails(tmp_path: Path) -> None:
    broken = ARRAYS | {"bad": np.zeros(3, np.complex64)}
    with pytest.raises(KeyError), weight_file(tmp_path, "one", broken, 5):
        pass
    with weight_file(tmp_path, "one", ARRAYS, 5) as path, safe_open(path, framework="np") as tensors:
        assert set(tensors.keys()) == set(ARRAYS)


def test_a_worker_that_holds_the_directory_too_long_makes_the_update_fail_and_not_hang(tmp_path: Path) -> None:
    with (
        locked(tmp_path, 1),
        pytest.raises(WeightsRejected, match="has held"),
        weight_file(tmp_path, "one", ARRAYS, 0.2),
    ):
        pass


def test_too_little_shared_memory_is_a_users_error_that_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result([*full[:4], 0, *full[5:]]))
    with pytest.raises(UserError, match="--shm-size"), weight_file(tmp_path, "one", ARRAYS, 5):
        pass
