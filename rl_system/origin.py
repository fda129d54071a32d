"""Where foreign code went wrong: an exception in one line that names the place a person should look at.

Of all the frames that an exception went through, that is the last one in code that a person brought: neither in a
library nor, where there is such a one, in this system.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

MOST_CHARACTERS = 400
"""Of what an exception says; some say the whole of what they could not read."""

_ROOT = Path(__file__).parents[1]
_OWN = tuple(f"{_ROOT / package}/" for package in ("actors", "envs", "launch", "rl_system"))
_LIBRARIES = tuple(f"{path}/" for path in {sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})


def explain(error: BaseException, called: Callable[..., Any] | None = None) -> str:
    """`ZeroDivisionError: division by zero (games/guessing.py, line 40, in step)`.

    called: what was called and raised. Its file is one that a person brought, and where none of its lines was reached
    (arguments that do not fit it), the place is its definition.
    """
    if isinstance(error, SyntaxError) and error.filename:
        text, where = f"{type(error).__name__}: {error.msg}", f"{_shown(error.filename)}, line {error.lineno}"
    else:
        text = "".join(traceback.format_exception_only(error))
        frames = traceback.extract_tb(error.__traceback__)
        where = place(frames) if called is None else place(frames, brought_by=called) or definition(called)
    return one_line(text) + (f" ({where})" if where else "")


def said(error: BaseException) -> str:
    """`ValueError: what it says` in one line; the kind alone where it says nothing."""
    words = one_line(str(error))
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def one_line(text: str) -> str:
    """`text` without line breaks, cut where it is very long."""
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS].rstrip() + " …"


def place(frames: Sequence[traceback.FrameSummary], brought_by: Callable[..., Any] | None = None) -> str:
    """`games/guessing.py, line 40, in step`: the frame that a person should look at; "" where there is none.

    frames: outermost first. brought_by: a function whose file is one that a person brought; then only such files will do.
    """
    code = _code(brought_by)
    file = code.co_filename if code is not None else None
    outside = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<"))]
    brought = [frame for frame in outside if frame.filename == file or not frame.filename.startswith(_OWN)]
    candidates = brought or ([] if brought_by is not None else outside or frames)
    if not candidates:
        return ""
    frame = candidates[-1]
    return f"{_shown(frame.filename)}, line {frame.lineno}, in {frame.name}"


def place_of_crash(text: str) -> str:
    """The same from what `faulthandler` wrote, innermost first; "" where it wrote nothing."""
    found = re.findall(r'^  File "(.+)", line (\d+) in (.+)$', text, re.MULTILINE)
    return place([traceback.FrameSummary(file, int(line), name) for file, line, name in reversed(found)])


def definition(function: Callable[..., Any]) -> str:
    """`games/guessing.py, line 38`: where `function` is defined; "" for one that is not written in Python."""
    code = _code(function)
    return f"{_shown(code.co_filename)}, line {code.co_firstlineno}" if code is not None else ""


def details(error: BaseException) -> str:
    """The whole traceback."""
    return "".join(traceback.format_exception(error))


def _code(function: Any) -> CodeType | None:
    return getattr(getattr(function, "__func__", function), "__code__", None)


def _shown(filename: str) -> str:
    """Relative to where the command was started, if it lies below."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
