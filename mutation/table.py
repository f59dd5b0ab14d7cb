"""What is mutated: the shipped modules, as far as `mutation/modules.toml` does not leave them out, with what it says of
some; and `mutation/survivors.toml`."""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
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
    """Every shipped module by name, but those that are left out: what has no entry has the tests nearest to it. Raises
    ValueError for an entry or a test of none, and for a seed that another entry has."""
    table = tomllib.loads((root / "mutation/modules.toml").read_text())
    defaults, left_out = table.pop("defaults"), table.pop("left_out", {})
    shipped = shipped_modules(root)
    _require_sense(table, left_out, shipped)
    return {
        name: _module(name, path, {**defaults, **table.get(name, {})}, root)
        for name, path in shipped.items()
        if name in table or not any(fnmatchcase(name, pattern) for pattern in left_out)
    }


def shipped_modules(root: Path) -> dict[str, str]:
    """Path by name of all modules but tests."""
    return {_name_of(path): str(path) for source in SOURCES for path in _modules_below(root, source)}


def _modules_below(root: Path, source: str) -> Iterator[Path]:
    for path in sorted((root / source).rglob("*.py")):
        inside = path.relative_to(root)
        # one at the top of a source is configuration of its tests
        if len(inside.parts) > 2 and "tests" not in inside.parts and not inside.name.startswith(("test_", "conftest")):
            yield inside


def _name_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")


def _require_sense(table: Mapping[str, Any], left_out: Mapping[str, str], shipped: Mapping[str, str]) -> None:
    owners: dict[int, str] = {}
    for name, entry in table.items():
        if name not in shipped:
            raise ValueError(f"modules.toml: there is no module {name}")
        if (owner := owners.setdefault(entry["seed"], name)) != name:
            raise ValueError(f"modules.toml: {name}: seed {entry['seed']} is that of {owner}")
    for pattern, reason in left_out.items():
        if not reason:
            raise ValueError(f"modules.toml: {pattern} is left out without a reason")
        if not any(fnmatchcase(name, pattern) for name in shipped):
            raise ValueError(f"modules.toml: {pattern} is left out, and there is no such module")


def load_survivors(root: Path) -> list[Survivor]:
    """Survivors that are known. Raises ValueError for one without a reason."""
    table = tomllib.loads((root / "mutation/survivors.toml").read_text())
    return [_survivor(module, entry) for module, entries in table.items() for entry in entries]


def _module(name: str, path: str, entry: Mapping[str, Any], root: Path) -> Module:
    tests = entry["tests"] if "tests" in entry else nearest_tests(path, root)
    if missing := [test for test in tests if not (root / test.split("::")[0]).exists()]:
        raise ValueError(f"modules.toml: {name}: there is no {missing[0]}")
    if not tests:
        raise ValueError(f"modules.toml: no folder above {path} has tests; name some, or leave {name} out")
    seed = entry.get("seed", zlib.crc32(name.encode()))
    return Module(name, path, tuple(tests), seed, entry["mutants"], entry["at_least"])


def nearest_tests(path: str, root: Path) -> list[str]:
    """Tests of the same name in the `tests` of the module's folder or of one above it, then all of the first such."""
    module = Path(path)
    folders = [folder / "tests" for folder in module.parents if (root / folder / "tests").is_dir()]
    named = [path for folder in folders for path in sorted((root / folder).glob(f"test_{module.stem}.py"))]
    return [*(str(item.relative_to(root)) for item in named), *map(str, folders[:1])]


def _survivor(module: str, entry: dict[str, str]) -> Survivor:
    if not entry.get("reason"):
        raise ValueError(f"survivors.toml: {module}: {entry['change']} has no reason")
    return Survivor(module, (entry["scope"], entry["line"], entry["change"]), entry["reason"])
