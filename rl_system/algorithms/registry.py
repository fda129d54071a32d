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
from rl_system.origin import definition, explain

Kind = Literal["advantages", "objectives", "corrections"]
FIELDS: dict[Kind, str] = {
    "advantages": "algorithm.advantage",
    "objectives": "algorithm.objective",
    "corrections": "algorithm.correction",
}
"""The configuration key that chooses among the implementations of a kind."""
DECLARED: dict[Kind, tuple[str, str]] = {
    "advantages": ("@estimator", "compares"),
    "objectives": ("@surrogate", "anchor"),
    "corrections": ("@correction", "coupled"),
}
"""How an implementation of a kind declares itself, and an attribute that it then has."""


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
    """The implementation `name` of `kind`; UserError where it is unknown, with the names there are, and where its file
    cannot be imported or does not define it."""
    if name not in names(kind):
        raise UserError(explain_unknown(kind, name))
    what = f"{FIELDS[kind]} is {name!r}"
    try:
        module = import_module(f"rl_system.algorithms.{kind}.{name}")
    except Exception as error:  # a file that somebody added, which may do anything
        raise UserError(f"{what}, but importing it raised {explain(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{what}, but {module.__file__} defines no function {name}")
    decorator, attribute = DECLARED[kind]
    if not hasattr(function, attribute):
        raise UserError(f"{what}, but {name} ({definition(function)}) is not declared by {decorator}; put it above it")
    return function
