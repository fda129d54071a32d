from dataclasses import dataclass

import numpy as np
import pytest

from actors.engine.versions import versions_of


@dataclass
class Span:
    version: str
    start: int
    end: int


def test_every_token_gets_the_version_of_its_span() -> None:
    versions = versions_of([Span("3", 0, 2), Span("4", 2, 3), Span("7", 3, 5)], 5)
    assert versions.dtype == np.int32 and versions.tolist() == [3, 3, 4, 7, 7]


def test_a_response_without_a_token_needs_no_span() -> None:
    assert versions_of(None, 0).tolist() == versions_of([], 0).tolist() == []


@pytest.mark.parametrize(
    "spans",
    [
        None,
        [],
        [Span("3", 0, 4)],
        [Span("3", 1, 5)],
        [Span("3", 0, 2), Span("4", 3, 5)],
        [Span("3", 0, 3), Span("4", 2, 5)],
        [Span("3", 0, 6)],
    ],
)
def test_versions_that_were_not_reported_once_for_every_token_are_an_error_and_not_a_guess(spans: list | None) -> None:
    with pytest.raises(RuntimeError, match="policy versions"):
        versions_of(spans, 5)


def test_the_label_of_an_engine_that_was_given_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="default"):
        versions_of([Span("default", 0, 5)], 5)
