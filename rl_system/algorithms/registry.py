"""Implementations of one kind, found by name: file `gspo.py` of a kind's folder defines the function `gspo`.

The folder is the list: adding an implementation takes one file. Listing the names imports none of them, so that a
configuration can be checked without torch.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Literal

from rl_system.errors import UserError

Kind = Literal["advantages", "objectives", "corrections"]
FIELDS: dict[Kind, str] = {
    "advantages": "algorithm.advantage",
    "objectives": "algorithm.objective",
    "corrections": "algorithm.correction",
}
"""The configuration key that chooses among the implementations of a kind."""


def kind_of(field: str) -> Kind:
    """The kind of implementation that the configuration key `field` chooses."""
    return next(kind for kind, chooses in FIELDS.items() if chooses == field)


def names(kind: Kind) -> list[str]:
    """The implementations there are, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / kind)]))


def explain_unknown(kind: Kind, name: str) -> str:
    """The paragraph a person gets for a name that is not there."""
    return f"{FIELDS[kind]} is {name!r}, which is not there; use one of {', '.join(names(kind))}"


def find(kind: Kind, name: str) -> Callable:
    """The implementation `name` of `kind`; UserError with the names there are where it is unknown."""
    if name not in names(kind):
        raise UserError(explain_unknown(kind, name))
    return getattr(import_module(f"rl_system.algorithms.{kind}.{name}"), name)
