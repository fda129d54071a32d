"""Saving and loading learners: nothing is lost, on any number of ranks, whatever is killed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl_system.config.algorithm import AlgorithmConfig
from rl_system.config.executor import ExecutorConfig
from rl_system.config.optimizer import OptimizerConfig
from rl_system.errors import UserError
from rl_system.training import model_files
from rl_system.training.checkpoint import load_checkpoint, save_checkpoint
from rl_system.training.checkpoint_directory import latest_checkpoint, open_checkpoint
from rl_system.training.learner import Learner
from rl_system.training.ranks import Ranks
from tests.rl_system.training.conftest import make_batch, make_model, make_tokenizer
from tests.rl_system.training.processes import run_ranks


def make_learner(ranks: Ranks | None = None, *, dtype=torch.float32, seed: int = 0, tied: bool = True) -> Learner:
    return Learner(
        make_model(dtype, seed=seed, tied=tied),
        algorithm=AlgorithmConfig(),
        executor=ExecutorConfig(method="tree"),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2, decay="cosine"),
        updates=6,
        ranks=ranks,
    )


def update(learner: Learner, steps: range) -> None:
    for step in steps:
        batch = make_batch(seed=step)
        learner.update(batch.take(np.arange(learner.ranks.rank, len(batch), learner.ranks.size)))


def save(learner: Learner, directory: Path, step: int, keep: int = 2) -> Path:
    return save_checkpoint(
        learner,
        make_tokenizer(),
        directory,
        run="run",
        step=step,
        started_from="model",
        state={"n": step},
        blobs={"b": b"xyz"},
        keep=keep,
    )


def load(learner: Learner, path: Path) -> Learner:
    load_checkpoint(learner, open_checkpoint(path))
    return learner


def values_of(learner: Learner) -> np.ndarray:
    return learner.flat.values[: learner.flat.slots[-1].stop].double().numpy().copy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_three_steps_and_three_after_a_resume_equal_six_bit_for_bit(dtype, tmp_path):
    whole = make_learner(dtype=dtype)
    update(whole, range(6))
    first = make_learner(dtype=dtype)
    update(first, range(3))
    second = load(make_learner(dtype=dtype, seed=99), save(first, tmp_path, 3))
    assert (second.version, second.optimizer.updates) == (3, 3)
    update(second, range(3, 6))
    assert torch.equal(second.flat.values, whole.flat.values)
    for name, states in whole.optimizer.states().items():
        assert torch.equal(second.optimizer.states()[name], states), name


def train_and_save(ranks: Ranks, directory: Path) -> None:
    learner = make_learner(ranks, dtype=torch.float64)
    update(learner, range(3))
    save(learner, directory, 3)


def resume_and_train(ranks: Ranks, path: Path) -> tuple[np.ndarray, np.ndarray]:
    learner = load(make_learner(ranks, dtype=torch.float64, seed=99), path)
    loaded = values_of(learner)
    update(learner, range(3, 6))
    return loaded, values_of(learner)


@pytest.mark.parametrize("before, after", [(1, 3), (3, 1), (2, 3)])
def test_a_resume_on_another_number_of_ranks_goes_on_as_if_nothing_had_happened(before, after, tmp_path):
    whole = make_learner(dtype=torch.float64)
    update(whole, range(6))
    run_ranks(before, train_and_save, tmp_path) if before > 1 else train_and_save(Ranks(), tmp_path)
    path = tmp_path / "step_3"
    results = run_ranks(after, resume_and_train, path) if after > 1 else [resume_and_train(Ranks(), path)]
    saved = AutoModelForCausalLM.from_pretrained(path / "model").state_dict()["model.norm.weight"].numpy()
    for loaded, trained in results:
        assert np.array_equal(loaded[-len(saved) :], saved)
        np.testing.assert_allclose(trained, values_of(whole), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("file_bytes", [1 << 30, 20_000])
def test_the_model_of_a_checkpoint_loads_with_from_pretrained(tied, file_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "FILE_BYTES", file_bytes)
    learner = make_learner(tied=tied)
    update(learner, range(1))
    directory = save(learner, tmp_path, 1) / "model"
    assert (len(list(directory.glob("*.safetensors"))) > 1) == (file_bytes == 20_000)
    loaded, loading = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert loaded.dtype == torch.float32
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name
    assert AutoTokenizer.from_pretrained(directory).encode("w5 w7") == [5, 7]
    assert torch.equal(load(make_learner(seed=9, tied=tied), tmp_path / "step_1").flat.values, learner.flat.values)


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_changed(tmp_path):
    path = save(make_learner(tied=False), tmp_path, 1)
    learner = make_learner(seed=5)
    before = learner.flat.values.clone()
    with pytest.raises(UserError, match="step_1 was written for another model"):
        load(learner, path)
    assert torch.equal(learner.flat.values, before)


def test_a_checkpoint_in_another_dtype_is_refused(tmp_path):
    path = save(make_learner(), tmp_path, 1)
    with pytest.raises(UserError, match=r"model\.dtype \(float32"):
        load(make_learner(dtype=torch.bfloat16), path)


def test_a_rank_that_cannot_write_makes_all_raise_and_no_checkpoint_appears(tmp_path):
    assert all("rank 1" in error for error in run_ranks(2, save_on_a_full_disk, tmp_path))
    assert list(tmp_path.iterdir()) == []


def save_on_a_full_disk(ranks: Ranks, directory: Path) -> str:
    learner = make_learner(ranks)
    if ranks.rank == 1:
        learner.optimizer.states = _raise_no_space
    try:
        save(learner, directory, 1)
    except OSError as error:
        return str(error)
    return "saved"


def _raise_no_space() -> None:
    raise OSError(28, "No space left on device")


WATCHED = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}
"""Audit events of the operations that change a file system; a kill before each of them is a kill at every moment that
counts."""


def save_until_killed(learner: Learner, directory: Path, kill_at: int, counted) -> None:
    """Save steps 2 and 3 over an existing step 1, and die by SIGKILL before operation `kill_at`."""

    def watch(event: str, arguments: tuple) -> None:
        if event in WATCHED and str(directory) in str(arguments[0]):
            counted.value += 1
            if counted.value == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    sys.addaudithook(watch)
    for step in (2, 3):
        save(learner, directory, step, keep=1)


def run_and_kill(learner: Learner, directory: Path, kill_at: int) -> int:
    """Operations that were reached."""
    context = multiprocessing.get_context("fork")
    counted = context.Value("i", 0)
    process = context.Process(target=save_until_killed, args=(learner, directory, kill_at, counted), daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode == (-signal.SIGKILL if counted.value == kill_at else 0)
    return counted.value


def test_a_kill_at_any_moment_of_a_save_leaves_a_loadable_checkpoint(tmp_path):
    learner = make_learner()
    first = save(learner, tmp_path / "first", 1)
    operations = run_and_kill(learner, copy_of(first, tmp_path / "complete"), kill_at=-1)
    assert operations > 60
    found = set()
    for kill_at in range(1, operations + 1, 3):
        directory = copy_of(first, tmp_path / f"killed_{kill_at}")
        run_and_kill(learner, directory, kill_at)
        newest = latest_checkpoint(directory)
        assert load(make_learner(seed=3), newest).flat.values.equal(learner.flat.values)
        found.add(newest.name)
    assert found == {"step_1", "step_2", "step_3"}


def copy_of(checkpoint: Path, directory: Path) -> Path:
    """A directory of checkpoints that holds `checkpoint` alone."""
    shutil.copytree(checkpoint, directory / checkpoint.name)
    return directory


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("where", ["parameters", "states"])
def test_a_checkpoint_of_numbers_that_are_none_is_never_written(ranks, where, tmp_path):
    errors = run_ranks(ranks, save_broken, tmp_path, where) if ranks > 1 else [save_broken(Ranks(), tmp_path, where)]
    assert all("was not written" in error and "of the policy is not finite" in error for error in errors)
    assert list(tmp_path.iterdir()) == []


def save_broken(ranks: Ranks, directory: Path, where: str) -> str:
    """One number is broken, on the last rank alone."""
    learner = make_learner(ranks)
    update(learner, range(1))
    if ranks.rank == ranks.size - 1:
        (learner.flat.values if where == "parameters" else learner.optimizer.second_moment)[5] = torch.inf
    try:
        save(learner, directory, 1)
    except UserError as error:
        return str(error)
    return "saved"


def test_a_step_in_which_one_rank_has_nothing_to_do_is_a_step_and_one_in_which_none_has_is_none():
    for moved, still in run_ranks(2, work_for_one_rank):
        assert moved and still


def work_for_one_rank(ranks: Ranks) -> tuple[bool, bool]:
    learner, batch = make_learner(ranks), make_batch()
    mine = batch if ranks.rank == 0 else batch.take(np.empty(0, np.int64))
    before = learner.flat.values.clone()
    first = learner.update(mine)
    moved = not torch.equal(learner.flat.values, before) and first["train/updates"] == 1
    before = learner.flat.values.clone()
    second = learner.update(replace(mine, weights=np.zeros_like(mine.weights)))
    return moved, torch.equal(learner.flat.values, before) and second["train/empty_updates"] == 1
