import json

import numpy as np

from rl_system.algorithms import sequences_of
from rl_system.records import TrainBatch
from rl_system.tracking.trees import write_tree
from tests.rl_system.algorithms.episodes import episode, random_batch, turn


def test_a_batch_is_written_with_the_first_trained_token_of_each_sequence(tmp_path):
    turns = [turn([1, 2], [3]), turn([1, 2, 9, 9], [4, 5])]
    batch = TrainBatch.of(sequences_of(episode(turns)))
    path = write_tree(batch, tmp_path / "trees" / "step_1.json", name="step 1", vocab_size=10)
    assert json.loads(path.read_text()) == {
        "name": "step 1",
        "vocab_size": 10,
        "sequences": [[1, 2, 3], [1, 2, 9, 9, 4, 5]],
        "response_start": [2, 4],
    }


def test_sequences_that_train_nothing_are_left_out(tmp_path):
    batch = random_batch(np.random.default_rng(0), [6, 1, 8])
    tree = json.loads(write_tree(batch, tmp_path / "t.json", name="t", vocab_size=100).read_text())
    assert [len(sequence) for sequence in tree["sequences"]] == [6, 8]
