"""A tool for models: runs a short Python program in an isolated process of its own, and returns what it printed.

    Target("rljob_worker.sandbox.python_tool:python", {}, limits, isolated=True)

Names that a program defines stay for the next one of the same trajectory.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from typing import Any

MOST_CHARACTERS = 20_000
"""How much of its output a program gets back; the middle of more is left out."""
FILE_NAME = "<program>"

_names: dict[str, Any] = {"__name__": "__main__"}


def python(code: str) -> str:
    """Run a Python program and return what it prints, with the traceback if it fails.

    code: the program.
    """
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            exec(compile(code, FILE_NAME, "exec"), _names)
        except SystemExit:
            pass
        except BaseException as error:
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE_NAME]
            output.writelines(["Traceback (most recent call last):\n"] if own else [])
            output.writelines([*traceback.format_list(own), *traceback.format_exception_only(error)])
    return _shortened(output.getvalue().encode(errors="replace").decode())


def _shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
