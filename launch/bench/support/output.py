"""Results as they are printed: JSON lines for programs, aligned columns for people."""

from __future__ import annotations

from typing import Any

from rl_system.strict_json import to_json


class Output:
    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def __call__(self, record: dict[str, Any]) -> None:
        """Print one result; with `--json` one object a line and nothing else on standard output."""
        if self.as_json:
            print(to_json(record), flush=True)
        else:
            print("  ".join(f"{name} {_text(value)}" for name, value in record.items()), flush=True)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(each) for each in value) + "]"
    return str(value)
