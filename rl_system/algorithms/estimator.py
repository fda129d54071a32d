"""How an advantage estimator declares itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)


def estimator(
    *, compares: bool, normalise_batch: bool = False, critic: bool = False
) -> Callable[[Function], Function]:
    """Declare an advantage estimator.

    compares: whether it sets the members of a group against each other, so that a group of one, or one in which all
    earned the same, teaches nothing. normalise_batch: whether the advantages of the whole step are usually normalised
    after it. critic: whether what it gives are returns, which become advantages once a critic has judged the tokens.
    """

    def declare(function: Function) -> Function:
        function.compares = compares
        function.normalise_batch = normalise_batch
        function.critic = critic
        return function

    return declare
