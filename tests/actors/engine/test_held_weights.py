"""What an engine holds, against the arrays themselves."""

import numpy as np

from actors.engine.held_weights import HeldWeights
from rl_system.records import WeightChunk
from rl_system.training.weights import weights_checksum


def chunk(identity: str, **arrays: float) -> WeightChunk:
    return WeightChunk({name: np.full(3, value, np.float32) for name, value in arrays.items()}, identity)


def values(chunks: list[WeightChunk]) -> list[dict]:
    return [each.content for each in chunks]


def update(held: HeldWeights, chunks: list[WeightChunk]) -> tuple[HeldWeights, list[str]]:
    """What is held afterwards, and the identities that were fetched for it."""
    missing = held.missing(chunks)
    return held.after(chunks, values(missing)), [each.identity for each in missing]


def test_only_chunks_of_other_identities_are_fetched_and_the_sum_is_that_of_the_whole():
    first = [chunk("1", a=1, b=2), chunk("2", c=3)]
    held, fetched = update(HeldWeights(verify=True), first)
    assert fetched == ["1", "2"] and held.checksum() == weights_checksum(values(first))
    second = [chunk("3", c=4), chunk("1", a=1, b=2)]
    held, fetched = update(held, second)
    assert fetched == ["3"] and held.checksum() == weights_checksum(values(second))
    assert held.shapes() == {"a": (3,), "b": (3,), "c": (3,)}


def test_a_chunk_that_was_left_out_once_is_fetched_again():
    held, _ = update(HeldWeights(verify=True), [chunk("1", a=1), chunk("2", b=1)])
    held, _ = update(held, [chunk("3", a=2), chunk("2", b=1)])
    _, fetched = update(held, [chunk("1", a=1), chunk("2", b=1)])
    assert fetched == ["1"]


def test_chunks_without_identity_are_always_fetched():
    chunks = [chunk("", a=1), chunk("", b=2)]
    held = HeldWeights(verify=True)
    for _ in range(2):
        held, fetched = update(held, chunks)
        assert fetched == ["", ""] and held.checksum() == weights_checksum(values(chunks))


def test_an_update_that_is_not_carried_out_leaves_the_record_as_it_was():
    held, _ = update(HeldWeights(verify=True), [chunk("1", a=1)])
    before = held.checksum()
    held.after([chunk("2", a=2)], [chunk("2", a=2).content])
    assert held.checksum() == before and held.missing([chunk("2", a=2)])
