"""Put this folder on PYTHONPATH: in no process does a pickle then come from, or go to, anything but a file.

In the folder that RLJOB_TEST_PICKLES names, a file per kind of process says that it was guarded, and one per library
that pickles to files.
"""

from __future__ import annotations

import _pickle
import inspect
import os
import pickle
import sys
from pathlib import Path
from typing import Any

TO_FILES = {"torch/serialization.py", "torch/distributed/checkpoint/filesystem.py", "jinja2/bccache.py"}
"""torch's checkpoints, and a constant that jinja2 puts before what it keeps on a disk."""


class PickleRefused(BaseException):
    """No `except Exception` shall hide it."""


def check(verb: str) -> None:
    """Refuse, unless the caller of our caller is a library that pickles to files."""
    path = inspect.currentframe().f_back.f_back.f_code.co_filename  # type: ignore[union-attr]
    library = next((library for library in TO_FILES if path.endswith(library)), None)
    if library is None:
        raise PickleRefused(f"{verb} called by {path}")
    note(library)


def note(what: str) -> None:
    (Path(os.environ["RLJOB_TEST_PICKLES"]) / what.replace("/", ".")).touch()


def guarded(verb: str) -> Any:
    real = getattr(pickle, verb)

    def guard(*arguments: Any, **options: Any) -> Any:
        check(verb)
        return real(*arguments, **options)

    return guard


class Pickler(_pickle.Pickler):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        check("Pickler")
        super().__init__(*arguments, **options)


class Unpickler(_pickle.Unpickler):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        check("Unpickler")
        super().__init__(*arguments, **options)


if "RLJOB_TEST_PICKLES" in os.environ:
    for name in ("dump", "dumps", "load", "loads"):
        setattr(pickle, name, guarded(name))
    pickle.Pickler, pickle.Unpickler = Pickler, Unpickler  # type: ignore[misc]
    note(sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv else "other")
