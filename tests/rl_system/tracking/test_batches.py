from dataclasses import fields

import numpy as np

from rl_system.records import Sequence, TrainBatch
from rl_system.tracking.batches import read_batch, write_batch


def test_a_batch_comes_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    sequences = [
        Sequence(
            token_ids=rng.integers(0, 99, n).astype(np.int32),
            trained=np.arange(n) % 3 > 0,
            behaviour_logprobs=rng.normal(size=n).astype(np.float32),
            versions=rng.integers(0, 3, n).astype(np.int32),
            advantages=rng.normal(size=n).astype(np.float32),
            weights=rng.random(n),
        )
        for n in (3, 7, 1)
    ]
    batch = TrainBatch.of(sequences, [4, 4, 9])
    again = read_batch(write_batch(batch, tmp_path / "deep" / "step_000001.npz"))
    for each in fields(batch):
        before, after = getattr(batch, each.name), getattr(again, each.name)
        assert (before is None and after is None) or (np.array_equal(before, after) and before.dtype == after.dtype)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["step_000001.npz"]
