"""Tree files as training batches.

A tree file is `{"name", "vocab_size", "sequences": [[int]], "response_start": [int]}`; tokens at positions from
`response_start[i]` on of sequence `i` are trained. What a real batch has beside tokens is drawn from a fixed seed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl_system.errors import UserError
from rl_system.origin import said
from rl_system.records import NO_VERSION, Sequence, TrainBatch

SEED = 20240229


@dataclass(frozen=True, slots=True)
class TreeFile:
    name: str
    vocabulary: int
    batch: TrainBatch


def read_tree_file(path: str | Path) -> TreeFile:
    try:
        content = json.loads(Path(path).read_text())
        sequences = [np.array(each, np.int32) for each in content["sequences"]]
        starts, vocabulary = content["response_start"], int(content["vocab_size"])
    except OSError as error:
        raise UserError(f"--trees {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--trees {path} is not a tree file ({said(error)}); expected JSON with name, vocab_size, "
            "sequences and response_start"
        ) from None
    if len(starts) != len(sequences):
        raise UserError(f"--trees {path} has {len(sequences)} sequences but {len(starts)} values of response_start")
    return TreeFile(content.get("name", Path(path).stem), vocabulary, as_batch(sequences, starts, vocabulary))


def as_batch(token_ids: list[np.ndarray], response_start: list[int], vocabulary: int) -> TrainBatch:
    """One advantage a sequence, behaviour logprobs around those of a fresh model, weights of a token mean."""
    random = np.random.default_rng(SEED)
    trained = [np.arange(len(ids)) >= max(1, start) for ids, start in zip(token_ids, response_start, strict=True)]
    total = max(1, sum(int(mask.sum()) for mask in trained))
    sequences = []
    for ids, mask in zip(token_ids, trained, strict=True):
        logprobs = -math.log(vocabulary) + 0.3 * random.standard_normal(len(ids))
        advantage = random.standard_normal()
        sequences.append(
            Sequence(
                token_ids=ids,
                trained=mask,
                behaviour_logprobs=np.where(mask, logprobs, 0).astype(np.float32),
                versions=np.where(mask, 0, NO_VERSION).astype(np.int32),
                advantages=np.where(mask, advantage, 0).astype(np.float32),
                weights=mask / total,
            )
        )
    return TrainBatch.of(sequences)
