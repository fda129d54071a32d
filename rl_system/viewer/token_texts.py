"""What a token id reads as, by the tokenizer that lies in the run's newest checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_system.errors import UserError
from rl_system.viewer.runs import RunFolder


class TokenTexts:
    """Of a `tokenizer.json`; UserError where it is none."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer  # half a second, and only once somebody looks at tokens

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # its library raises nothing more special, whatever is wrong with the file
            raise UserError(f"{path} is no tokenizer.json that can be read: {error}") from error
        self._known: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """One text a token. A part of a character reads as U+FFFD, an unknown id as its number."""
        return [self._known[each] if each in self._known else self._read(each) for each in ids]

    def _read(self, token: int) -> str:
        known = 0 <= token < 1 << 32 and self._tokenizer.id_to_token(token) is not None
        text = self._tokenizer.decode([token], skip_special_tokens=False) if known else f"[{token}]"
        self._known[token] = text
        return text


def newest_tokenizer(run: RunFolder) -> Path | None:
    """The file of the last checkpoint that has one; None while there is none."""
    checkpoints = run.file("checkpoints")
    if checkpoints is None:
        return None
    try:
        names = [path.name for path in checkpoints.iterdir() if path.name.startswith("step_")]
    except OSError:
        return None
    steps = sorted((int(name[5:]) for name in names if name[5:].isascii() and name[5:].isdigit()), reverse=True)
    for step in steps:
        if (path := run.file("checkpoints", f"step_{step}", "model", "tokenizer.json")) is not None:
            return path
    return None
