"""Which policy version sampled each token, from the spans in which the engine reports it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np


class Span(Protocol):
    """Response tokens `[start, end)` were sampled by weights labelled `version`."""

    version: str
    start: int
    end: int


def versions_of(spans: Iterable[Span] | None, tokens: int) -> np.ndarray:
    """int32 [tokens]. Raises RuntimeError unless `spans` cover every token once: a version is never guessed."""
    versions = np.empty(tokens, np.int32)
    covered = 0
    for span in spans or ():
        if span.start != covered or span.end > tokens:
            raise RuntimeError(f"the engine's spans of policy versions do not follow each other at token {covered}")
        versions[span.start : span.end] = int(span.version)
        covered = span.end
    if covered != tokens:
        raise RuntimeError(f"the engine reported policy versions for {covered} of {tokens} sampled tokens")
    return versions
