"""The trainers' side of a checkpoint: parameters once, optimizer states by rank, and back on any number of ranks.

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
    MODEL,
    OPTIMIZER,
    STATE,
    Checkpoint,
    remove_old,
    step_directory,
    write_manifest,
)
from rl_system.training.learner import Learner
from rl_system.training.model_files import load_parameters, save_model, write_safetensors
from rl_system.training.weights import as_numpy

RANDOM_STATE = "random_state"


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
    name. All ranks see the same file system. On a failure of any rank no checkpoint appears and all ranks raise.
    """
    ranks, final = learner.ranks, step_directory(checkpoints, step)
    # Every collective below is reached by every rank, also by one whose disk is full.
    staging = ranks.gather_objects(complete_directory.stage(final) if ranks.rank == 0 else None)[0]
    failure = None
    try:
        _write_optimizer(learner, staging)
        if ranks.rank == 0:
            _write_rest(learner, tokenizer, staging, blobs)
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
    if saved["slots"] != _slots(learner) or saved["precision"] != _precision(learner):
        raise UserError(
            f"checkpoint {checkpoint.path} was written for another model or model.dtype ({saved['precision'][0]}, "
            f"{len(saved['slots'])} parameters) than the configured one ({_precision(learner)[0]}, "
            f"{len(_slots(learner))} parameters); resume with the configuration that it was written with"
        )
    load_parameters(learner.model, checkpoint.path / MODEL)
    optimizer = learner.optimizer
    for rank, shares in enumerate(saved["shares"]):
        with safe_open(checkpoint.path / OPTIMIZER / _file(rank), framework="pt") as file:
            offset = 0
            for start, stop in shares:
                for name, states in optimizer.states().items():
                    _copy_overlaps(file.get_slice(name), offset, slice(start, stop), states, optimizer.shares)
                offset += stop - start
            if rank == learner.ranks.rank:
                torch.set_rng_state(file.get_tensor(RANDOM_STATE))
    optimizer.set_updates(saved["updates"])
    learner.version, learner.bad_steps = saved["version"], saved["bad_steps"]


def _copy_overlaps(saved: Any, offset: int, stretch: slice, states: torch.Tensor, shares: list[slice]) -> None:
    """Copy what `stretch` of the vector, which lies at `offset` of `saved`, has in common with `shares` into
    `states`."""
    own = 0
    for share in shares:
        start, stop = max(stretch.start, share.start), min(stretch.stop, share.stop)
        if start < stop:
            values = saved[offset + start - stretch.start : offset + stop - stretch.start]
            states[own + start - share.start : own + stop - share.start].copy_(values)
        own += share.stop - share.start


def _write_optimizer(learner: Learner, staging: Path) -> None:
    directory = staging / OPTIMIZER
    directory.mkdir(exist_ok=True)
    arrays = {name: as_numpy(states) for name, states in learner.optimizer.states().items()}
    arrays[RANDOM_STATE] = np.asarray(torch.get_rng_state())
    write_safetensors(directory / _file(learner.ranks.rank), arrays)


def _write_rest(
    learner: Learner, tokenizer: PreTrainedTokenizerBase, staging: Path, blobs: Mapping[str, bytes]
) -> None:
    (staging / MODEL).mkdir()
    save_model(learner.model, tokenizer, staging / MODEL)
    (staging / STATE).mkdir()
    for name, content in blobs.items():
        (staging / STATE / name).write_bytes(content)


def _learner_state(learner: Learner, started_from: str) -> dict[str, Any]:
    return {
        "started_from": started_from,
        "version": learner.version,
        "updates": learner.optimizer.updates,
        "bad_steps": learner.bad_steps,
        "slots": _slots(learner),
        "precision": _precision(learner),
        "shares": [
            [[share.start, share.stop] for share in learner.flat.shares(rank)] for rank in range(learner.ranks.size)
        ],
    }


def _slots(learner: Learner) -> list[list]:
    return [[slot.name, slot.start, slot.stop] for slot in learner.flat.slots]


def _precision(learner: Learner) -> list[str]:
    vectors = (learner.flat.values, learner.flat.gradients)
    return [str(vector.dtype).removeprefix("torch.") for vector in vectors]


def _file(rank: int) -> str:
    return f"rank_{rank}.safetensors"
