import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_system.allocation.ledger import GroupState, StalenessLedger


def test_as_many_groups_start_as_the_bound_allows_and_not_one_more():
    ledger = StalenessLedger(groups_per_batch=3, max_staleness=2)
    started = [ledger.start() for _ in range(9)]
    assert ledger.permits() == 0 and {group.version for group in started} == {0}
    with pytest.raises(RuntimeError, match="without a permit"):
        ledger.start()


def test_a_dropped_group_gives_its_permit_back():
    ledger = StalenessLedger(groups_per_batch=1, max_staleness=0)
    group = ledger.start()
    ledger.drop(group.group_id, "zero_signal")
    assert ledger.permits() == 1 and ledger.dropped == {"zero_signal": 1}


def test_a_new_version_gives_permits_only_once_the_workers_serve_it():
    ledger = StalenessLedger(groups_per_batch=2, max_staleness=0)
    for _ in range(2):
        ledger.finish(ledger.start().group_id)
    assert ledger.take_batch() == [0, 1]
    assert ledger.permits() == 0
    ledger.serve(1)
    assert ledger.permits() == 2


def test_a_batch_waits_for_a_slow_group_that_would_be_too_old_afterwards():
    ledger = StalenessLedger(groups_per_batch=2, max_staleness=1)
    slow, *others = [ledger.start().group_id for _ in range(4)]
    for group_id in others:
        ledger.finish(group_id)
    assert ledger.take_batch() == others[:2]  # the slow group may still be in the batch after this one
    ledger.serve(1)
    for _ in range(2):
        ledger.finish(ledger.start().group_id)
    assert ledger.take_batch() is None and "too old" in ledger.waits_for()
    ledger.finish(slow)
    assert ledger.take_batch() == [slow, others[2]]


def test_overtaking_stops_where_the_groups_left_behind_could_no_longer_all_be_trained_on_in_time():
    ledger = StalenessLedger(groups_per_batch=1, max_staleness=2)
    slow = [ledger.start().group_id for _ in range(2)]
    ledger.finish(ledger.start().group_id)
    assert ledger.take_batch() == [2]  # the slow two still fit into the batches at 1 and 2
    ledger.serve(1)
    ledger.finish(ledger.start().group_id)
    assert ledger.take_batch() is None  # a further overtaking would leave one batch for both
    ledger.finish(slow[0])
    assert ledger.take_batch() == [slow[0]]


def test_finished_groups_are_taken_in_the_order_in_which_they_were_started():
    ledger = StalenessLedger(groups_per_batch=1, max_staleness=3)
    for group_id in reversed([ledger.start().group_id for _ in range(4)]):
        ledger.finish(group_id)
    assert [ledger.take_batch() for _ in range(4)] == [[0], [1], [2], [3]]


def test_no_more_groups_are_started_than_the_run_will_train_on():
    ledger = StalenessLedger(groups_per_batch=2, max_staleness=5, total_groups=3)
    assert [ledger.start().group_id for _ in range(ledger.permits())] == [0, 1, 2]


def test_a_resumed_ledger_counts_what_was_trained_before():
    ledger = StalenessLedger(groups_per_batch=2, max_staleness=1)
    ids = [ledger.start().group_id for _ in range(4)]
    for group_id in ids[:3]:
        ledger.finish(group_id)
    ledger.take_batch()
    resumed = StalenessLedger(groups_per_batch=2, max_staleness=1)
    resumed.restore(ledger.state())
    assert resumed.trained == 1 and resumed.finished == 1 and resumed.running == 0
    assert resumed.permits() == (1 + 1 + 1) * 2 - 2 - 1  # no burst: the trained batch and the finished group count
    assert resumed.start().group_id == 3  # it was running: it starts again as what it was
    assert resumed.start().group_id == 4


def test_groups_that_were_running_start_again_under_their_ids_also_after_a_second_resume():
    ledger = StalenessLedger(groups_per_batch=2, max_staleness=1)
    for group_id in [ledger.start().group_id for _ in range(4)][1::2]:
        ledger.finish(group_id)
    for _ in range(2):
        state = ledger.state()
        ledger = StalenessLedger(groups_per_batch=2, max_staleness=1)
        ledger.restore(state)
    assert ledger.start().group_id == 0
    state = ledger.state()
    assert state["running"] == [0, 2] and sorted(state["finished"]) == ["1", "3"]
    ledger = StalenessLedger(groups_per_batch=2, max_staleness=1)
    ledger.restore(state)
    assert [ledger.start().group_id for _ in range(ledger.permits())] == [0, 2]
    assert ledger.next_group_id == 4


def test_a_group_finishes_once():
    ledger = StalenessLedger(groups_per_batch=1, max_staleness=0)
    group_id = ledger.start().group_id
    ledger.finish(group_id)
    with pytest.raises(RuntimeError, match="not running"):
        ledger.drop(group_id, "failed")


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 4), st.randoms(use_true_random=False))
def test_under_any_schedule_staleness_stays_within_the_bound_and_the_run_never_gets_stuck(
    groups_per_batch: int, max_staleness: int, rng: random.Random
):
    ledger = StalenessLedger(groups_per_batch, max_staleness)
    versions: dict[int, int] = {}
    running: list[int] = []
    trained: list[int] = []
    for _ in range(200):
        actions = []
        if ledger.permits():
            actions.append("start")
        if running:
            actions += ["finish", "drop"] if rng.random() < 0.3 else ["finish"]
        if ledger.serving < ledger.trained:
            actions.append("serve")
        if ledger.waits_for() is None:
            actions.append("train")
        if rng.random() < 0.02:
            actions = ["resume"]
        assert actions, "nothing can happen any more"
        action = rng.choice(actions)
        if action == "start":
            group = ledger.start()
            versions[group.group_id] = group.version
            running.append(group.group_id)
        elif action == "serve":
            ledger.serve(rng.randint(ledger.serving + 1, ledger.trained))
        elif action == "resume":
            state = ledger.state()
            ledger = StalenessLedger(groups_per_batch, max_staleness)
            ledger.restore(state)
            assert set(running) <= set(state["running"])
            running = []
        elif action == "train":
            at = ledger.trained
            batch = ledger.take_batch()
            assert len(batch) == groups_per_batch
            assert all(at - versions[group_id] <= max_staleness for group_id in batch)
            trained += batch
        else:
            group_id = running.pop(rng.randrange(len(running)))
            ledger.finish(group_id) if action == "finish" else ledger.drop(group_id, "failed")
        assert ledger.finished == sum(group.state is GroupState.FINISHED for group in ledger.alive.values())
        if ledger.waits_for() is not None:  # which looks at all groups anew, every time
            assert ledger.take_batch() is None
        assert ledger.trained * groups_per_batch + len(ledger.alive) <= (
            ledger.serving + max_staleness + 1
        ) * groups_per_batch
    assert len(trained) == len(set(trained))
