import pytest

from rl_system.allocation.tally import Tally


def test_every_window_counts_with_what_happened_in_it():
    tally = Tally(0.5)
    tally.add(tokens=100.0, groups=1.0)
    tally.add(tokens=100.0, groups=4.0)
    assert tally.ratio("tokens", "groups") == pytest.approx((50 + 100) / (0.5 + 4))


def test_a_window_without_groups_counts_its_tokens_and_divides_by_nothing():
    tally = Tally(0.3)
    tally.add(tokens=5.0, groups=0.0)
    assert tally.ratio("tokens", "groups") == 0.0
    tally.add(tokens=5.0, groups=2.0)
    assert tally.ratio("tokens", "groups") == pytest.approx((0.7 * 5 + 5) / 2)


def test_a_lasting_change_takes_over():
    tally = Tally(0.3)
    for tokens in [10.0] * 20 + [40.0] * 10:
        tally.add(tokens=tokens, groups=1.0)
    assert tally.ratio("tokens", "groups") == pytest.approx(40, rel=0.05)


def test_a_tally_goes_on_from_its_state():
    first, second = Tally(0.3), Tally(0.3)
    first.add(tokens=7.0, groups=2.0)
    second.restore(first.state())
    for each in (first, second):
        each.add(tokens=1.0, groups=1.0)
    assert first.ratio("tokens", "groups") == second.ratio("tokens", "groups")
