"""Parts by name: those that are built in, and those that other packages bring by entry point.

    [project.entry-points."rljob.optimizers"]
    Lion = "my_package.declared:LION"

The value is a declaration, such as a `DeclaredOptimizer`, of the name that the entry point has. It is imported by
whoever plans, checks or runs a job that names it, so its module imports nothing heavy; what it declares is named as
`module:function`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

from rljob_api.vocabulary.problem import InvalidJobError, Problem, suggestion


class Declaration(Protocol):
    """What a job may name."""

    @property
    def name(self) -> str: ...


D = TypeVar("D", bound=Declaration)


class Declarations(Mapping[str, D]):
    """Declarations of one kind by name. A package cannot replace a built-in one."""

    def __init__(self, noun: str, group: str, kind: type[D], *built_in: D) -> None:
        """noun: what a job's owner calls one. group: of entry points."""
        self._noun, self.group, self._kind = noun, group, kind
        self.built_in = {item.name: item for item in built_in}
        self._loaded: dict[str, D] = {}

    def __getitem__(self, name: str) -> D:
        """KeyError for a name that nobody declares; InvalidJobError for a package that cannot be loaded."""
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(self._entry_points[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Every name, without loading the package behind it."""
        return iter(dict.fromkeys([*self.built_in, *self._entry_points]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self._entry_points

    def find(self, name: str) -> D | None:
        """None for a name that has `problems`."""
        return None if any(self.problems("", name)) else self[name]

    def problems(self, path: str, name: str) -> Iterator[Problem]:
        """Why a job cannot have it. path: where the job names it."""
        try:
            self[name]
        except KeyError:
            yield Problem(path, json.dumps(name), f"there is no such {self._noun}", suggestion(name, self))
        except InvalidJobError as error:
            yield from (replace(problem, path=path, found=json.dumps(name)) for problem in error.problems)

    def forget(self) -> None:
        """Look packages up anew, after one was installed or the path has changed."""
        self.__dict__.pop("_entry_points", None)
        self._loaded.clear()

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        """Installed ones, looked up once: this reads the metadata of every package."""
        result: dict[str, EntryPoint] = {}
        for entry_point in entry_points(group=self.group):
            other = result.setdefault(entry_point.name, entry_point)
            if other.value != entry_point.value:
                raise self._refused(
                    entry_point, f"the package {_package(other)} brings this name, too", "Uninstall one."
                )
        return result

    def _load(self, entry_point: EntryPoint) -> D:
        try:
            result: Any = entry_point.load()
        except Exception as error:  # code of another package runs here
            message = f"it cannot be imported: {type(error).__name__}: {error}"
            raise self._refused(entry_point, message, "Repair or uninstall that package.") from error
        if not isinstance(result, self._kind) or result.name != entry_point.name:
            message = f"{entry_point.value} is not a {self._kind.__name__} of this name"
            raise self._refused(entry_point, message, "Repair or uninstall that package.")
        return result

    def _refused(self, entry_point: EntryPoint, message: str, fix: str) -> InvalidJobError:
        place = f"{self.group} {entry_point.name} of the package {_package(entry_point)}"
        return InvalidJobError([Problem("", "", f"{place}: {message}", fix)])


def _package(entry_point: EntryPoint) -> str:
    return "of unknown name" if entry_point.dist is None else f"{entry_point.dist.name} {entry_point.dist.version}"
