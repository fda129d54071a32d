import pytest

from rl_system.origin import explain, said


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), ValueError("  \n ")])
def test_an_error_that_says_nothing_is_told_by_its_kind(error):
    assert said(error) == type(error).__name__ and explain(error).startswith(type(error).__name__)


def test_an_error_is_told_in_one_line():
    assert said(ValueError("one\n  two")) == "ValueError: one two"
    assert len(said(ValueError("word " * 1000))) < 500
