"""Swapping a running engine's weights, all or nothing.

Owns the order of a swap and what a failure in each of its steps means. Everything that can be wrong with the weights
is found before the engine is paused (`check_…`): the update is refused, and the old version goes on serving. From
the moment the engine starts loading there is no way back to the old weights: the session treats a failure there as the
end of the engine.

Requests in flight stay: they stop between two decode steps, their keys and values are computed again under the new
weights, and the tokens that follow carry the new version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM

from actors.engine.errors import WeightsRejected
from rl_system.errors import UserError
from rl_system.training.architecture import OUTPUT_HEAD
from rl_system.training.parameter_files import Shapes, parameter_files, tensor_shapes

WEIGHT_DTYPES = ("float64", "float32", "float16", "bfloat16")
"""numpy's names of the dtypes that parameters may have (bfloat16: that of ml_dtypes)."""


def files_to_load(directory: Path, expected: Shapes) -> list[Path]:
    """The files that hold the parameters in `directory`. Raises WeightsRejected unless they are `expected`, all of them."""
    try:
        files = parameter_files(directory)
        check_shapes(tensor_shapes(files), expected)
    except UserError as error:
        raise WeightsRejected(str(error)) from error
    return files


def check_shapes(sent: Mapping[str, tuple[int, ...]], expected: Shapes) -> None:
    """Refuse weights that are not exactly the model's parameters: a missing one would leave a layer half loaded."""
    missing = sorted(expected.keys() - sent.keys())
    unknown = sorted(sent.keys() - expected.keys() - {OUTPUT_HEAD})
    reshaped = sorted(name for name in sent.keys() & expected.keys() if tuple(sent[name]) != expected[name])
    if missing or unknown or reshaped:
        raise WeightsRejected(
            f"the weights sent are not those of the model: {len(missing)} missing {missing[:3]}, "
            f"{len(unknown)} unknown {unknown[:3]}, {len(reshaped)} of another shape {reshaped[:3]}"
        )


def check_dtypes(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays that the engine's file cannot hold."""
    foreign = sorted({array.dtype.name for array in arrays.values()} - set(WEIGHT_DTYPES))
    if foreign:
        raise WeightsRejected(f"weights of dtype {foreign} cannot be sent; use one of {list(WEIGHT_DTYPES)}")


def check_sum(found: str, sent: str) -> None:
    """Refuse weights that are not, bit for bit, what was sent."""
    if found != sent:
        raise WeightsRejected(f"the weights that arrived have checksum {found}, those sent had {sent or 'none'}")


async def begin_update(engine: AsyncLLM) -> None:
    """Stop between two decode steps, forget cached prefixes, and make the model ready to load."""
    await engine.pause_generation(mode="keep", clear_cache=True)
    await engine.start_weight_update()


async def receive_update(engine: AsyncLLM, update_info: dict[str, Any]) -> None:
    """Load what `update_info` describes in the terms of the engine's transfer backend."""
    await engine.update_weights(WeightTransferUpdateRequest(update_info=update_info))


async def end_update(engine: AsyncLLM, version: int) -> None:
    """Label what follows `version` and go on with the requests in flight."""
    await engine.finish_weight_update(str(version))
    await engine.resume_generation()


async def load_files(engine: AsyncLLM, paths: Sequence[Path], version: int) -> None:
    """The whole swap, from the safetensors files `paths`. What is in none of them stays as it is."""
    await begin_update(engine)
    await receive_update(engine, {"paths": [str(path) for path in paths]})
    await end_update(engine, version)
