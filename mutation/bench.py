"""`Bench`: a process that has imported what a module's tests need, and forks itself for every mutant."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mutation.mutants import Mutant
from mutation.overlay import Overlay
from mutation.table import Module
from mutation.trial import TrialOutcome, adopt, trial

CLEAN_SECONDS = 600.0
"""What the tests may take on the module as it is, imports included."""
PYTEST = (
    "-x",
    "--quiet",
    "-p no:cacheprovider",
    "-p no:xdist",
    # the same examples for every mutant, and none remembered
    "--hypothesis-profile=ci",
    # plugins are imported before the fork
    "-W ignore::pytest.PytestAssertRewriteWarning",
)


class CleanRunFailed(Exception):
    """The tests fail without any mutant."""


class Bench:
    """Tries mutants of one module, one at a time."""

    def __init__(self, module: Module, root: Path, folder: Path) -> None:
        adopt()
        self._module = module
        self._folder = folder
        self._overlay = Overlay(root, folder / "tree")
        self._original = (root / module.path).read_text()
        self._enter(root)
        self._clean(self._tests_then_modules)
        self._preload()
        self._limit = _timeout_seconds(self._clean(self._tests_timed).seconds)
        self._test_limit = _timeout_seconds(json.loads((folder / "slowest").read_text()))

    def kills(self, mutant: Mutant) -> bool:
        """Whether the tests kill the mutant; one that hangs is killed by the clock, of a test or of them all."""
        self._overlay.write(self._module.path, mutant.text)
        run = partial(self._tests, f"--timeout={self._test_limit}")
        return trial(run, self._folder / "log", self._limit).code != 0

    def _enter(self, root: Path) -> None:
        """Imports come from the overlay, here and in every process that is started from here."""
        path = self._overlay.python_path
        os.chdir(self._overlay.folder)
        sys.path[:] = [*path, *(item for item in sys.path if item and not _below(item, root, but=".venv"))]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        temporary = self._folder / "tmp"
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)

    def _clean(self, run: Callable[[], int]) -> TrialOutcome:
        self._overlay.write(self._module.path, self._original)
        log = self._folder / "log"
        outcome = trial(run, log, CLEAN_SECONDS)
        if outcome.code != 0:
            raise CleanRunFailed(f"{self._module.name}: tests fail without a mutant:\n{log.read_text()[-4000:]}")
        return outcome

    def _tests(self, *more: str, plugins: Sequence[object] = ()) -> int:
        import pytest

        options = [word for option in PYTEST for word in option.split(" ", 1)]
        options += [f"--basetemp={self._folder / 'tmp' / 'p'}", *more]
        return int(pytest.main([*options, *self._module.tests], plugins))

    def _tests_timed(self) -> int:
        stopwatch = _Stopwatch()
        code = self._tests(plugins=[stopwatch])
        (self._folder / "slowest").write_text(json.dumps(max(stopwatch.seconds.values(), default=0.0)))
        return code

    def _tests_then_modules(self) -> int:
        code = self._tests()
        foreign = [name for name, item in list(sys.modules.items()) if self._is_foreign(name, item)]
        (self._folder / "modules").write_text(json.dumps(foreign))
        return code

    def _is_foreign(self, name: str, module: object) -> bool:
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and name != "__main__" and not _below(file, self._overlay.folder)

    def _preload(self) -> None:
        """Import what needs not be imported for every mutant: other people's modules, and what the module imports."""
        for name in json.loads((self._folder / "modules").read_text()):
            _import(name)
        for name in _imports(self._original):
            if trial(partial(self._leads_here, name), self._folder / "log", CLEAN_SECONDS).code == 0:
                _import(name)

    def _leads_here(self, name: str) -> bool:
        """Whether importing this imports the module: the packages that it lies in may, and so all that lies in them."""
        _import(name)
        return self._module.name in sys.modules


class _Stopwatch:
    """What each test takes with its fixtures, as reported by pytest."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration


def _timeout_seconds(seconds: float) -> float:
    """How long something may take that took `seconds` without a mutant."""
    return 5 * seconds + 5


def _import(name: str) -> None:
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")
        importlib.import_module(name)


def _imports(text: str) -> list[str]:
    """Modules that a module imports at its top."""
    result: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            result += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            result += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return result


def _below(path: str, folder: Path, but: str | None = None) -> bool:
    place = Path(path)
    return place.is_relative_to(folder) and not (but and place.is_relative_to(folder / but))
