"""Standard output for results alone: whatever else writes there, as engines do, goes to standard error."""

from __future__ import annotations

import os
import sys
from typing import TextIO


class results_stream:
    """`with results_stream() as out`: only what is written to `out` reaches standard output, also from C code."""

    def __enter__(self) -> TextIO:
        sys.stdout.flush()
        self._saved = os.dup(1)
        os.dup2(2, 1)
        self._stream = os.fdopen(os.dup(self._saved), "w", encoding="utf-8")
        return self._stream

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        sys.stdout.flush()
        os.dup2(self._saved, 1)
        os.close(self._saved)
