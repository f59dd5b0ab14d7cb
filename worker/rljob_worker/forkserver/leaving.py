"""The only way out of a fork: nothing of the process it came from runs on in it."""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def leave_as(work: Callable[[], int]) -> NoReturn:
    """End this process with what `work` returns, or with 1 and a traceback; without the parent's handlers of exits."""
    code = 1
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(code)


def flush_output() -> None:
    """Also before a fork, in which what is left in a buffer would be written again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a full disk, a closed one, none
            stream.flush()
