from rl_system.allocation.drops import DropStreak


def test_groups_that_were_dropped_in_a_row_are_told_by_what_they_were_dropped_for():
    drops = DropStreak()
    for reason in ["zero_signal"] * 2 + ["failed"] * 3:
        drops.dropped(reason)
    text = drops.explain()
    assert len(drops) == 5 and text.startswith("the last 5 groups were all dropped")
    assert text.index("3 failed") < text.index("2 had no signal")
    drops.finished()
    drops.dropped("failed")
    assert "1 failed" in drops.explain() and "signal" not in drops.explain()
