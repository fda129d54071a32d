"""Cutting what is complete into pieces for clients that read a stream."""

from __future__ import annotations

from collections.abc import Iterator

PIECE = 200
"""Characters of one piece."""


def pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]
