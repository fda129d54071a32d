import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_system.algorithms.group_race import GroupRace


def test_the_first_to_finish_make_the_group_and_the_rest_is_left_to_cancel():
    race = GroupRace(size=2, started=4)
    race.end(3, failed=False)
    assert not race.over
    race.end(1, failed=False)
    assert race.complete and race.members == [1, 3] and race.running == {0, 2}


def test_a_failed_episode_is_replaced_by_a_spare_one():
    race = GroupRace(size=2, started=3)
    race.end(0, failed=True)
    assert not race.over
    race.end(1, failed=False)
    race.end(2, failed=False)
    assert race.complete and race.members == [1, 2]


def test_without_spare_episodes_one_failure_loses_the_group_at_once():
    race = GroupRace(size=3, started=3)
    race.end(1, failed=True)
    assert race.lost and race.running == {0, 2}


def test_who_ends_together_with_the_last_member_changes_nothing():
    race = GroupRace(size=1, started=3)
    for index in (0, 1, 2):
        race.end(index, failed=False)
    assert race.members == [0] and race.running == set()


@pytest.mark.parametrize(("size", "started"), [(0, 2), (3, 2)])
def test_a_group_that_cannot_be_is_refused(size, started):
    with pytest.raises(ValueError, match="cannot be made"):
        GroupRace(size, started)


@given(st.integers(1, 5), st.integers(0, 4), st.randoms(use_true_random=False))
def test_a_race_ends_complete_exactly_if_enough_do_not_fail_and_never_waits_longer_than_it_must(
    size: int, spare: int, rng: random.Random
):
    race, finishers = GroupRace(size, size + spare), []
    order = list(range(size + spare))
    rng.shuffle(order)
    failures = 0
    for index in order:
        assert race.over == (len(finishers) == size or failures > spare)
        if race.over:
            break
        failed = rng.random() < 0.4
        race.end(index, failed)
        failures += failed
        finishers += [] if failed else [index]
    assert race.complete == (len(finishers) == size) and race.lost == (failures > spare)
    assert not race.complete or race.members == sorted(finishers)
    assert race.complete != race.lost
