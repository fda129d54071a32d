import json
from dataclasses import fields

import numpy as np
import pytest

from rl_system.records import NO_VERSION, Sequence
from rl_system.training.checkpoint_directory import Checkpoint, write_manifest
from rl_system.training.run_state import RunState


def sequence(seed: int) -> Sequence:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 9))
    trained = np.arange(n) > 0
    return Sequence(
        token_ids=rng.integers(0, 99, n).astype(np.int32),
        trained=trained,
        behaviour_logprobs=np.where(trained, rng.normal(size=n), 0).astype(np.float32),
        versions=np.where(trained, 3, NO_VERSION).astype(np.int32),
        advantages=np.where(trained, rng.normal(), 0).astype(np.float32),
        weights=trained.astype(np.float64),
    )


def ledger(finished: list[int], running: list[int] = ()) -> dict:
    finished = {str(group_id): 0 for group_id in finished}
    return {"ledger": {"finished": finished, "running": list(running)}, "policy": {}}


@pytest.fixture
def sampler() -> dict:
    return {"epoch": 0, "position": 4, "tasks": 9, "again": {"3": "left over"}}


def test_a_group_that_finished_between_two_questions_is_trained_on_and_not_started_again(sampler):
    pool = {"sampler": sampler, "under_way": {"5": "task of 5", "6": "task of 6"}}
    groups = {4: [sequence(4)], 5: [sequence(5)], 7: [sequence(7)]}  # 7 came in after the ledger was asked
    state = RunState.collect(2, pool, ledger([4, 5], running=[6, 3]), groups)
    assert sorted(state.groups) == [4, 5]
    assert state.sampler["again"] == {"6": "task of 6", "3": "left over"}


def test_a_group_dropped_between_two_questions_does_not_start_again_and_one_started_takes_its_task_anew(sampler):
    pool = {"sampler": sampler, "under_way": {"5": "task of 5", "6": "task of 6"}}
    state = RunState.collect(2, pool, ledger([], running=[6, 3, 8]), {})
    assert state.sampler["again"] == {"6": "task of 6", "3": "left over"}
    assert state.controller["ledger"]["running"] == [6, 3, 8] and state.sampler["position"] == 4


@pytest.mark.parametrize("group_ids", [[], [3, 8]])
def test_a_saved_state_comes_back_bit_by_bit(tmp_path, sampler, group_ids):
    groups = {group_id: [sequence(group_id), sequence(group_id + 100)] for group_id in group_ids}
    state = RunState.collect(7, {"sampler": sampler, "under_way": {}}, ledger(group_ids), groups)
    values, blobs = state.parts()
    (tmp_path / "state").mkdir()
    for name, content in blobs.items():
        (tmp_path / "state" / name).write_bytes(content)
    checkpoint = Checkpoint(tmp_path, "run", 7, json.loads(json.dumps(values)))
    write_manifest(tmp_path, checkpoint)
    again = RunState.of(checkpoint)
    assert (again.step, again.controller, again.sampler) == (7, state.controller, state.sampler)
    assert sorted(again.groups) == group_ids
    for group_id in group_ids:
        for old, new in zip(groups[group_id], again.groups[group_id], strict=True):
            for each in fields(old):
                np.testing.assert_array_equal(getattr(old, each.name), getattr(new, each.name), strict=True)
