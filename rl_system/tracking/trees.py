"""Training batches as tree files, the format that the benchmarks read.

`{"name", "vocab_size", "sequences": [[int]], "response_start": [int]}`: the tokens of sequence `i` from
`response_start[i]` on are trained. The format has one boundary a sequence: tokens between the first trained one and
the end that were not sampled (tool results) count as trained in the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rl_system.records import TrainBatch
from rl_system.strict_json import write_json


def write_tree(batch: TrainBatch, path: Path, *, name: str, vocab_size: int) -> Path:
    """Write the sequences of `batch` that train anything to `path`, complete or not at all; returns `path`."""
    sequences, starts = [], []
    for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        trained = np.flatnonzero(batch.trained[begin:end])
        if len(trained):
            sequences.append(batch.token_ids[begin:end].tolist())
            starts.append(int(trained[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"name": name, "vocab_size": vocab_size, "sequences": sequences, "response_start": starts})
    return path
