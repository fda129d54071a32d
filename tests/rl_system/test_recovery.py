from hypothesis import given
from hypothesis import strategies as st

from rl_system.recovery import Attempts


def test_a_run_that_gets_further_between_losses_is_always_started_again():
    attempts = Attempts(1)
    assert all(attempts.another(step) for step in range(1000))


def test_without_getting_further_than_before_it_is_started_so_often_and_no_more():
    attempts = Attempts(3)
    # From a checkpoint of step 2: steps that are done again are none further.
    assert [attempts.another(step) for step in (5, 2, 4, 5)] == [True, True, True, False]


def test_no_attempts_means_that_the_first_loss_ends_the_run():
    assert not Attempts(0).another(7)


@given(st.integers(0, 5), st.lists(st.integers(0, 20), max_size=60))
def test_starts_are_bounded_by_what_was_reached(limit, steps):
    attempts, starts = Attempts(limit), 0
    for step in steps:
        if not attempts.another(step):
            break
        starts += 1
    assert starts <= limit * len(set(steps))
