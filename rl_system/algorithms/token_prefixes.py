"""Which of many token sequences another one starts with.

Found by the hash of a prefix, so that a question costs what the sequence asked about is long, however many there are and
however much they share. Invariant: an answer is checked token for token, never taken from a hash alone.
"""

from __future__ import annotations

import heapq

import numpy as np


class TokenPrefixes:
    def __init__(self) -> None:
        self._by_length: dict[int, dict[int, list[tuple[int, np.ndarray]]]] = {}
        """By their length and hash: heaps of number and token ids."""
        self._factors = np.empty(0, np.uint64)
        self._random = np.random.default_rng(0)

    def add(self, number: int, token_ids: np.ndarray) -> None:
        """token_ids: int32 [tokens]; number: what it is known by, never given twice."""
        same = self._by_length.setdefault(len(token_ids), {}).setdefault(self._hashes(token_ids)[-1], [])
        heapq.heappush(same, (number, token_ids))

    def longest(self, token_ids: np.ndarray) -> int | None:
        """The longest one that `token_ids` starts with, of several the one with the lowest number."""
        found = self._find(token_ids)
        return None if found is None else self._by_length[found[0]][found[1]][0][0]

    def pop_longest(self, token_ids: np.ndarray) -> int | None:
        """The same, and from then on it is not there any more."""
        found = self._find(token_ids)
        if found is None:
            return None
        length, key = found
        number, _ = heapq.heappop(self._by_length[length][key])
        if not self._by_length[length][key]:
            del self._by_length[length][key]
        if not self._by_length[length]:
            del self._by_length[length]
        return number

    def _find(self, token_ids: np.ndarray) -> tuple[int, int] | None:
        hashes = self._hashes(token_ids)
        for length in sorted(self._by_length, reverse=True):
            same = self._by_length[length].get(hashes[length], ()) if length < len(hashes) else ()
            if same and starts_with(token_ids, same[0][1]):
                return length, hashes[length]
        return None

    def _hashes(self, token_ids: np.ndarray) -> list[int]:
        """Of every prefix, the empty one first: sums of tokens times random factors, modulo 2^64."""
        if len(token_ids) > len(self._factors):
            more = self._random.integers(1, 1 << 63, len(token_ids), dtype=np.uint64)
            self._factors = np.concatenate([self._factors, more])
        products = (token_ids.astype(np.uint64) + 1) * self._factors[: len(token_ids)]
        return [0, *np.cumsum(products, dtype=np.uint64).tolist()]


def starts_with(token_ids: np.ndarray, prefix: np.ndarray) -> bool:
    """Token-exact: whether `prefix` [p] is the beginning of `token_ids` [n]."""
    return len(token_ids) >= len(prefix) and np.array_equal(token_ids[: len(prefix)], prefix)
