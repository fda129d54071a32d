from dataclasses import replace

import numpy as np
import pytest

from rl_system.algorithms import prepare_batch
from rl_system.config.algorithm import AlgorithmConfig
from tests.rl_system.algorithms.episodes import random_batch


def test_a_sequence_with_one_token_that_is_too_old_is_left_out_whole_and_of_every_denominator():
    batch = random_batch(np.random.default_rng(0), [10, 10, 10])
    batch.trained[:] = np.tile(np.arange(10) >= 4, 3)
    versions = np.full(30, 5)
    versions[[6, 25]] = [3, 2]
    batch = replace(batch, versions=np.where(batch.trained, versions, -1), weights=batch.trained.astype(float))
    config = AlgorithmConfig(mask_staleness_above=2, aggregation="token_mean")
    got = prepare_batch(batch, config, version=5)
    np.testing.assert_allclose(got.weights, np.where(batch.trained & (np.arange(30) < 20), 1 / 12, 0))
    assert (prepare_batch(batch, config, version=4).weights > 0).sum() == 18


def test_the_mask_needs_the_version():
    with pytest.raises(ValueError, match="version"):
        prepare_batch(random_batch(np.random.default_rng(0), [3]), AlgorithmConfig(mask_staleness_above=1))
