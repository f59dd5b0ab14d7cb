"""What is mutated: `mutation/modules.toml` and `mutation/survivors.toml`, read once into values."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = ("client", "crds", "operator", "worker")
"""Folders that packages are imported from."""


@dataclass(frozen=True)
class Module:
    """A module under mutation."""

    name: str
    path: str
    """Below the repository's root, as are the tests."""
    tests: tuple[str, ...]
    """Those that most often fail come first."""
    seed: int
    mutants: int
    """How many are tried."""
    at_least: float
    """Percentage that must be killed."""


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test kills, and why that is right."""

    module: str
    key: tuple[str, str, str]
    reason: str


def load_modules(root: Path) -> dict[str, Module]:
    """The table of modules by name. Raises ValueError for a module or a test that is not there, and for a seed that
    another module has."""
    table = tomllib.loads((root / "mutation/modules.toml").read_text())
    defaults = table.pop("defaults")
    modules = {name: _module(name, {**defaults, **entry}, root) for name, entry in table.items()}
    owners: dict[int, str] = {}
    for name, module in modules.items():
        if (owner := owners.setdefault(module.seed, name)) != name:
            raise ValueError(f"modules.toml: {name}: seed {module.seed} is that of {owner}")
    return modules


def load_survivors(root: Path) -> list[Survivor]:
    """Survivors that are known. Raises ValueError for one without a reason."""
    table = tomllib.loads((root / "mutation/survivors.toml").read_text())
    return [_survivor(module, entry) for module, entries in table.items() for entry in entries]


def _module(name: str, entry: dict[str, Any], root: Path) -> Module:
    file = name.replace(".", "/")
    candidates = [f"{source}/{file}{end}" for source in SOURCES for end in (".py", "/__init__.py")]
    path = next((each for each in candidates if (root / each).is_file()), None)
    if path is None:
        raise ValueError(f"modules.toml: there is no module {name}")
    for test in entry["tests"]:
        if not (root / test.split("::")[0]).exists():
            raise ValueError(f"modules.toml: {name}: there is no {test}")
    return Module(name, path, tuple(entry["tests"]), entry["seed"], entry["mutants"], entry["at_least"])


def _survivor(module: str, entry: dict[str, str]) -> Survivor:
    if not entry.get("reason"):
        raise ValueError(f"survivors.toml: {module}: {entry['change']} has no reason")
    return Survivor(module, (entry["scope"], entry["line"], entry["change"]), entry["reason"])
