"""The job's own modules are searched last: a file named like a module of Python's, of a library or of ours never takes
its place in our processes, and is refused by name where the job asks for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from rljob_api.vocabulary import keys
from rljob_worker.our_packages import OUR_PACKAGES


def code_folders(environment: Mapping[str, str]) -> list[str]:
    """The absolute folders of the job's modules, first come first found."""
    return [os.path.abspath(entry) for entry in environment.get(keys.ENV_CODE, "").split(os.pathsep) if entry]


def add_to_path(environment: Mapping[str, str] = os.environ) -> None:
    """Let this process import the job's modules, after everything it could import before."""
    sys.path += [folder for folder in code_folders(environment) if folder not in sys.path]


def why_hidden(
    module: str, environment: Mapping[str, str] = os.environ, path: Sequence[str] | None = None
) -> str | None:
    """Why `import module` finds another module than the job's of that name; None where it does not, or where what the
    job asks for is ours."""
    name = module.partition(".")[0]
    if name in OUR_PACKAGES:
        return None
    folders = code_folders(environment)
    mine = next((place for folder in folders if (place := _in(Path(folder), name))), None)
    if mine is None:
        return None
    others = [entry for entry in (sys.path if path is None else path) if os.path.abspath(entry) not in folders]
    spec = PathFinder.find_spec(name, others)
    if spec is None and name not in sys.builtin_module_names:
        return None
    other = spec.origin if spec is not None and spec.origin else "a module of Python itself"
    return f"{mine} is never found, because {name!r} is {other}; give the file another name"


def _in(folder: Path, name: str) -> Path | None:
    """Where a folder has a module or a package of that name."""
    return next((place for place in (folder / f"{name}.py", folder / name / "__init__.py") if place.is_file()), None)
