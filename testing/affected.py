"""The test files that the changes of a working tree can reach: `python -m testing.affected [COMMIT]`.

A test reaches a module that it imports, directly or through others. Whole jobs start processes, which imports do not
show: `make test` runs those.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp

PACKAGES = {
    "rljob": "client",
    "rljob_api": "crds",
    "rljob_operator": "operator",
    "rljob_worker": "worker",
}
"""The folder that holds each package whose imports are followed."""
ALONE = ("e2e/", "charts/tests/", "charts/rljob/tests/")
"""Folders whose tests have a make target of their own."""


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    print(*reached(changed_files(commit), graph, Path()), sep="\n")


def changed_files(commit: str) -> list[str]:
    """Those that differ from the commit, and those that git does not know yet."""
    listings = (["diff", "--name-only", "--no-renames", commit], ["ls-files", "--others", "--exclude-standard"])
    return sorted({name for listing in listings for name in _git(*listing)})


def reached(changed: Iterable[str], graph: grimp.ImportGraph, checkout: Path) -> list[str]:
    """Test files, sorted. A file that is not a module reaches the tests of the nearest folder that has any, and those
    of the whole repository where that is the root."""
    result: set[str] = set()
    for name in changed:
        module = module_of(name)
        if module in graph.modules:
            users = {module, *graph.find_downstream_modules(module)}
            result |= {_file_of(user) for user in users if _is_test(user)}
        elif module is None:
            result |= _nearest_tests(checkout, Path(name))
    return sorted(name for name in result if (checkout / name).exists() and not name.startswith(ALONE))


def module_of(name: str) -> str | None:
    """`crds/rljob_api/checks/step.py` is `rljob_api.checks.step`; None for a file outside the packages."""
    path = Path(name)
    if path.suffix != ".py" or len(path.parts) < 3 or PACKAGES.get(path.parts[1]) != path.parts[0]:
        return None
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _file_of(module: str) -> str:
    return f"{PACKAGES[module.partition('.')[0]]}/{module.replace('.', '/')}.py"


def _is_test(module: str) -> bool:
    return module.rpartition(".")[2].startswith("test_")


def _nearest_tests(checkout: Path, file: Path) -> set[str]:
    for folder in (*file.parents[:-1], Path("tests")):
        if paths := [path.relative_to(checkout) for path in (checkout / folder).rglob("test_*.py")]:
            return {path.as_posix() for path in paths}
    return set()


def _git(*arguments: str) -> list[str]:
    listed = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return listed.stdout.splitlines()


if __name__ == "__main__":
    main()
