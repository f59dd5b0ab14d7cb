"""Packages of simulators: imported when a simulator is made, or named with the command that installs them."""

from __future__ import annotations

import importlib
from typing import Any

from rljob_worker.embodied.simulators.settings import FIELD
from rljob_worker.errors import InvalidJob, NotHere


def imported(name: str, install: str) -> Any:
    """A module. install: what installs its package, as arguments of pip. Raises NotHere where it is not installed,
    InvalidJob where it cannot be imported, also where it ends the process or asks a question instead."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NotHere(
            f"{FIELD}.run needs the package {error.name or name}, which is not installed; run pip install {install}"
        ) from error
    except (Exception, SystemExit) as error:
        raise InvalidJob(f"{FIELD}.run: importing {name} failed: {type(error).__name__}: {error}") from error
