"""How an off-policy correction declares itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)


def correction(*, coupled: bool = False) -> Callable[[Function], Function]:
    """Declare a correction. coupled: whether a pair's factor depends on the other pairs of its sequence."""

    def declare(function: Function) -> Function:
        function.coupled = coupled
        return function

    return declare
