"""A response that one worker began and another one ends.

A worker that has to give up its accelerator hands over what it is generating: each turn as far as it came. So does one
that takes too long for a turn. The tokens
that are there keep their logprobs and policy versions; the next worker computes their keys and values again and goes
on from them.

Invariant: the whole turn takes no more tokens than the first request allowed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_system.records import Turn

ABORTED = "abort"
"""Finish reason of a turn that was handed over: to be resumed, never trained on as it is."""
OVERDUE = "overdue"
"""The same, of a turn for which its worker took too long: better resumed by another one."""


def tokens_so_far(turn: Turn) -> np.ndarray:
    """int32 [prompt + response]: the prompt of the request that goes on with `turn`."""
    return turn.token_ids


def tokens_left(turn: Turn, max_new_tokens: int) -> int:
    """How many tokens the next worker may add to `turn` under the first request's `max_new_tokens`."""
    return max_new_tokens - len(turn.response_ids)


def join_turns(first: Turn, rest: Turn) -> Turn:
    """The one turn that `first` and `rest`, sampled from `tokens_so_far(first)`, make up."""
    if not np.array_equal(rest.prompt_ids, tokens_so_far(first)):
        raise ValueError("the second part of a turn does not go on from the tokens of its first part")
    return replace(
        rest,
        prompt_ids=first.prompt_ids,
        response_ids=np.concatenate([first.response_ids, rest.response_ids]),
        logprobs=np.concatenate([first.logprobs, rest.logprobs]),
        versions=np.concatenate([first.versions, rest.versions]),
    )
