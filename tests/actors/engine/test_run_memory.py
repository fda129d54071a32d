"""Shared memory of a run: claimed by live workers, removed behind dead ones, and never anybody else's."""

import json
import os
from collections.abc import Iterator
from multiprocessing import Process, get_context
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from actors.engine.run_memory import (
    claim_shared_memory,
    leave_run_directory,
    remove_leftovers,
    run_directory,
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run's directory, with nothing of it left in shared memory afterwards."""
    yield tmp_path
    for path in run_directory(tmp_path).glob("*.claim"):
        path.unlink()
    remove_leftovers(tmp_path)


@pytest.fixture
def queue() -> Iterator[SharedMemory]:
    """A file in shared memory, as vLLM's queues are."""
    memory = SharedMemory(create=True, size=4096)
    yield memory
    memory.close()
    if Path("/dev/shm", memory.name).exists():
        memory.unlink()


def in_child(function, *arguments) -> Process:
    """Run `function` in a process of its own."""
    process = get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join(timeout=30)
    assert process.exitcode == 0
    return process


def claim_as_worker(directory: Path, name: str) -> None:
    """Stand for a worker whose engine's process maps the file `name`."""
    ready, done = get_context("fork").Event(), get_context("fork").Event()

    def engine() -> None:
        memory = SharedMemory(name)
        ready.set()
        done.wait(10)
        memory.close()

    process = get_context("fork").Process(target=engine)
    process.start()
    assert ready.wait(10)
    claim_shared_memory(directory, 5)
    done.set()
    process.join(10)


def test_files_of_a_dead_worker_are_removed_with_the_runs_directory(run: Path, queue: SharedMemory) -> None:
    in_child(claim_as_worker, run_directory(run), queue.name)
    assert Path("/dev/shm", queue.name) in remove_leftovers(run)
    assert not Path("/dev/shm", queue.name).exists() and not run_directory(run).exists()


def test_files_of_a_live_worker_stay(run: Path, queue: SharedMemory) -> None:
    claim_as_worker(run_directory(run), queue.name)
    assert remove_leftovers(run) == []
    assert Path("/dev/shm", queue.name).exists() and run_directory(run).exists()


def test_files_that_no_claim_names_stay(run: Path, queue: SharedMemory) -> None:
    in_child(claim_shared_memory, run_directory(run), 5)
    remove_leftovers(run)
    assert Path("/dev/shm", queue.name).exists()


def test_a_claim_cannot_name_a_file_outside_shared_memory(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_text("stay")
    in_child(claim_shared_memory, run_directory(run), 5)
    [claim] = run_directory(run).glob("*.claim")
    claim.write_text(json.dumps(json.loads(claim.read_text()) | {"names": [f"../..{outside}"]}))
    remove_leftovers(run)
    assert outside.exists()


def test_a_dead_workers_pid_that_another_process_has_now_does_not_keep_its_files(
    run: Path, queue: SharedMemory
) -> None:
    in_child(claim_as_worker, run_directory(run), queue.name)
    [claim] = run_directory(run).glob("*.claim")
    claim.write_text(json.dumps(json.loads(claim.read_text()) | {"pid": os.getpid()}))
    remove_leftovers(run)
    assert not Path("/dev/shm", queue.name).exists()


def test_a_worker_that_leaves_removes_what_its_killed_engine_left(run: Path, queue: SharedMemory) -> None:
    claim_as_worker(run_directory(run), queue.name)
    leave_run_directory(run_directory(run), 5)
    assert not Path("/dev/shm", queue.name).exists() and not run_directory(run).exists()


def test_the_last_worker_to_leave_removes_the_directory(run: Path) -> None:
    directory = run_directory(run)
    in_child(claim_shared_memory, directory, 5)
    claim_shared_memory(directory, 5)
    leave_run_directory(directory, 5)
    assert directory.exists(), "another worker's claim is still there"
    for claim in directory.glob("*.claim"):
        claim.unlink()
    leave_run_directory(directory, 5)
    assert not directory.exists()


def test_two_runs_have_two_directories(tmp_path: Path) -> None:
    assert run_directory(tmp_path / "a") != run_directory(tmp_path / "b")
    assert run_directory(tmp_path / "a") == run_directory(tmp_path / "c" / ".." / "a")
