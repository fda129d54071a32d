"""The trainers' side of a checkpoint: parameters once, optimizer states by rank, and back on any number of ranks.

Of the policy, and of the critic where there is one.

States are kept as stretches of the flat parameter vector, whose layout does not depend on the number of ranks; a rank
that loads takes from every file what falls into its own shares.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from transformers import PreTrainedTokenizerBase

from rl_system.errors import UserError
from rl_system.training import complete_directory
from rl_system.training.checkpoint_directory import (
    CRITIC,
    MODEL,
    OPTIMIZER,
    STATE,
    Checkpoint,
    remove_old,
    step_directory,
    write_manifest,
)
from rl_system.training.finite import is_finite
from rl_system.training.flat_parameters import copy_overlaps
from rl_system.training.learner import Learner
from rl_system.training.model_files import load_parameters, save_model, save_parameters, write_safetensors
from rl_system.training.trained import Trained
from rl_system.training.weights import as_numpy, saved_tensors

RANDOM_STATE = "random_state"
CRITIC_PREFIX = "critic_"
"""Before the names of the files that hold the critic's optimizer states."""


def save_checkpoint(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    checkpoints: Path,
    *,
    run: str,
    step: int,
    started_from: str,
    state: Mapping[str, Any],
    blobs: Mapping[str, bytes],
    keep: int,
) -> Path:
    """Write `checkpoints/step_<step>`, then remove all but the newest `keep`; every rank calls it with the same
    arguments.

    started_from: directory of the model that the run began with. state: values that JSON can hold. blobs: bytes by file
    name. All ranks see the same file system. On a failure of any rank no checkpoint appears and all ranks raise. UserError
    where a parameter or an optimizer state is not finite: who went on from there would learn nothing.
    """
    ranks, final = learner.world, step_directory(checkpoints, step)
    # Every collective below is reached by every rank, also by one whose disk is full.
    if broken := _not_finite(learner):
        raise UserError(
            f"checkpoint {final} was not written: {broken[0]} is not finite, so that nothing could be learnt from there; "
            "resume from an earlier checkpoint with a smaller optimizer.learning_rate or optimizer.max_grad_norm"
        )
    parameters = _parameters(learner)
    staging = ranks.gather_objects(complete_directory.stage(final) if ranks.rank == 0 else None)[0]
    failure = None
    try:
        _write_optimizer(learner, staging)
        if ranks.rank == 0:
            _write_rest(learner, tokenizer, staging, parameters, blobs)
    except OSError as error:
        failure = f"rank {ranks.rank}: {error}"
    failures = [each for each in ranks.gather_objects(failure) if each]
    if not failures and ranks.rank == 0:
        try:
            write_manifest(staging, Checkpoint(final, run, step, dict(state), _learner_state(learner, started_from)))
            complete_directory.publish(staging, final)
            remove_old(checkpoints, keep)
        except OSError as error:
            failures = [f"rank 0: {error}"]
    failures = ranks.gather_objects(failures)[0]
    if failures:
        if ranks.rank == 0:
            shutil.rmtree(staging, ignore_errors=True)
        raise OSError(f"checkpoint {final} could not be written; {'; '.join(failures)}")
    return final


def load_checkpoint(learner: Learner, checkpoint: Checkpoint) -> None:
    """Put `learner` where the checkpoint's was, whatever the number of ranks was then.

    Raises UserError for a checkpoint of another model.
    """
    saved = checkpoint.learner
    checkpoint.require_critic(learner.critic is not None)
    for trained, record, _, _ in _parts(learner, saved):
        _check(trained, record, checkpoint)
    for trained, record, directory, prefix in _parts(learner, saved):
        load_parameters(trained.model, checkpoint.path / directory)
        _load_states(trained, record, checkpoint.path / OPTIMIZER, prefix)
    if learner.world.rank < len(saved["shares"]) * saved["tensor_parallel"]:
        with safe_open(checkpoint.path / OPTIMIZER / _file("", learner.world.rank), framework="pt") as file:
            torch.set_rng_state(file.get_tensor(RANDOM_STATE))
    learner.version = saved["version"]
    if broken := _not_finite(learner):
        raise UserError(
            f"checkpoint {checkpoint.path} is of no use: {broken[0]} is not finite; remove it, and resume from the one before"
        )


def _not_finite(learner: Learner) -> list[str]:
    """What is not finite in the models and their optimizers, in words; the same on every rank."""
    found = []
    for name, trained in {"of the policy": learner, "of the critic": learner.critic}.items():
        if trained is None:
            continue
        optimizer = trained.optimizer
        vectors = {
            "a parameter": trained.flat.values,
            "a first moment of the optimizer": optimizer.first_moment,
            "a second moment of the optimizer": optimizer.second_moment,
        }
        found += [f"{what} {name}" for what, vector in vectors.items() if not is_finite(vector)]
    return [each for rank in learner.world.gather_objects(found) for each in rank]


def _parts(learner: Learner, saved: dict[str, Any]) -> list[tuple[Trained, dict[str, Any], str, str]]:
    """What there is to load, with its record, the directory of its parameters and the prefix of its state files."""
    policy = [(learner, saved, MODEL, "")]
    return policy if learner.critic is None else [*policy, (learner.critic, saved[CRITIC], CRITIC, CRITIC_PREFIX)]


def _check(trained: Trained, saved: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Raises UserError unless `saved` is the record of such a model."""
    sharing = trained.flat.sharding.group.size
    if saved["tensor_parallel"] != sharing:
        raise UserError(
            f"checkpoint {checkpoint.path} was written with allocation.tensor_parallel {saved['tensor_parallel']}, but "
            f"{sharing} is configured; resume with the one that it was written with"
        )
    slots, precision = _slots(trained), _precision(trained)
    if saved["slots"] != slots or saved["precision"] != precision:
        raise UserError(
            f"checkpoint {checkpoint.path} was written for another model or model.dtype ({saved['precision'][0]}, "
            f"{len(saved['slots'])} parameters) than the configured one ({precision[0]}, {len(slots)} parameters); "
            "resume with the configuration that it was written with"
        )


def _load_states(trained: Trained, saved: dict[str, Any], directory: Path, prefix: str) -> None:
    """Take from the files of all ranks there were, with the same share of the model, what falls into this rank's shares."""
    optimizer, group = trained.optimizer, trained.flat.sharding.group
    for rank, shares in enumerate(saved["shares"]):
        with safe_open(directory / _file(prefix, rank * group.size + group.rank), framework="pt") as file:
            offset = 0
            for start, stop in shares:
                for name, states in optimizer.states().items():
                    copy_overlaps(file.get_slice(name), offset, slice(start, stop), states, optimizer.shares)
                offset += stop - start
    optimizer.set_updates(saved["updates"])
    trained.bad_steps.total = saved["bad_steps"]


def _write_optimizer(learner: Learner, staging: Path) -> None:
    directory, rank = staging / OPTIMIZER, learner.world.rank
    directory.mkdir(exist_ok=True)
    states = _states(learner) | {RANDOM_STATE: np.asarray(torch.get_rng_state())}
    write_safetensors(directory / _file("", rank), states)
    if learner.critic is not None:
        write_safetensors(directory / _file(CRITIC_PREFIX, rank), _states(learner.critic))


def _states(trained: Trained) -> dict[str, np.ndarray]:
    return {name: as_numpy(states) for name, states in trained.optimizer.states().items()}


def _parameters(learner: Learner) -> dict[str, Mapping[str, torch.Tensor]]:
    """By directory; all ranks of the first copy of the model take part in gathering them."""
    if learner.ranks.rank > 0:
        return {}
    policy = {MODEL: saved_tensors(learner.model)}
    return policy if learner.critic is None else policy | {CRITIC: saved_tensors(learner.critic.model)}


def _write_rest(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    staging: Path,
    parameters: Mapping[str, Mapping[str, torch.Tensor]],
    blobs: Mapping[str, bytes],
) -> None:
    (staging / MODEL).mkdir()
    save_model(learner.model, tokenizer, staging / MODEL, parameters[MODEL])
    if learner.critic is not None:
        (staging / CRITIC).mkdir()
        save_parameters(parameters[CRITIC], staging / CRITIC)
    (staging / STATE).mkdir()
    for name, content in blobs.items():
        (staging / STATE / name).write_bytes(content)


def _learner_state(learner: Learner, started_from: str) -> dict[str, Any]:
    state = {"started_from": started_from, "version": learner.version} | _record(learner)
    return state if learner.critic is None else state | {CRITIC: _record(learner.critic)}


def _record(trained: Trained) -> dict[str, Any]:
    """What the state files need to be read again: counters, and what lies where in them."""
    flat = trained.flat
    return {
        "updates": trained.optimizer.updates,
        "bad_steps": trained.bad_steps.total,
        "slots": _slots(trained),
        "precision": _precision(trained),
        "tensor_parallel": flat.sharding.group.size,
        "shares": [[[share.start, share.stop] for share in flat.shares(rank)] for rank in range(flat.shards)],
    }


def _slots(trained: Trained) -> list[list]:
    return [[slot.name, slot.start, slot.stop] for slot in trained.flat.slots]


def _precision(trained: Trained) -> list[str]:
    vectors = (trained.flat.values, trained.flat.gradients)
    return [str(vector.dtype).removeprefix("torch.") for vector in vectors]


def _file(prefix: str, rank: int) -> str:
    return f"{prefix}rank_{rank}.safetensors"
