"""Functions of a notebook or script, which other processes of the machine cannot import: pickled by value.

A job names one as `rljob_worker.users_code.pickled:NAME`; its folder is in the variable FOLDER of the job's `env`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "PICKLED_FUNCTIONS_FOLDER"


def file_of(folder: Path, name: str) -> Path:
    """Where the function of this name is."""
    return folder / f"{name}.pkl"


def __getattr__(name: str) -> Callable[..., Any]:
    """A function by its name. Raises AttributeError, as modules do, where there is none."""
    folder = os.environ.get(FOLDER, "")
    if not folder or name.startswith("__"):
        raise AttributeError(name)
    try:
        content = file_of(Path(folder), name).read_bytes()
    except FileNotFoundError:
        raise AttributeError(name) from None
    import dill  # only such jobs need it

    function: Callable[..., Any] = dill.loads(content)
    return function
