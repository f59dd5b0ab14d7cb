"""`python -m mutation [MODULE ...]`: put mistakes into modules of the table and see whether their tests notice.

A name may be a pattern; without one it is the modules that differ from the base.
Ends with 1 when a mutant survives without a reason in survivors.toml, or a module stays below its percentage.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

from mutation.bench import Bench, CleanRunFailed
from mutation.changes import changed_lines
from mutation.mutants import Mutant, mutants_of
from mutation.report import Result, findings_text, judge, row
from mutation.sample import sample
from mutation.table import Module, Survivor, load_modules, load_survivors


def main() -> int:
    """Modules of the working tree that this is called in."""
    options = _options()
    root = Path.cwd()
    modules, known = load_modules(root), load_survivors(root)
    if unknown := [name for name in options.modules if not fnmatch.filter(modules, name)]:
        print(f"no module, or left out in modules.toml: {', '.join(unknown)}", file=sys.stderr)
        return 2
    rows, failed = [], False
    for name in _chosen(modules, root, options):
        result, passed = _mutate(modules[name], known, root, options)
        rows.append(row(result))
        failed = failed or not passed
    print("\n".join(["", "| module | mutants | killed | % |", "|---|--:|--:|--:|", *rows]))
    return int(failed)


def _chosen(modules: Mapping[str, Module], root: Path, options: argparse.Namespace) -> list[str]:
    if options.modules:
        return [name for name in modules if any(fnmatch.fnmatchcase(name, module) for module in options.modules)]
    return [name for name, module in modules.items() if changed_lines(root, module.path, options.base)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutation")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="or a pattern; default: what differs from --base")
    parser.add_argument("--base", default="main", help="lines that differ from this commit come first")
    parser.add_argument("--mutants", type=int, help="how many, instead of the table's number")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants tried at a time")
    return parser.parse_args()


def _mutate(module: Module, known: list[Survivor], root: Path, options: argparse.Namespace) -> tuple[Result, bool]:
    begin = time.monotonic()
    original = (root / module.path).read_text()
    mutants = mutants_of(original)
    changed = changed_lines(root, module.path, options.base)
    tried = sample(mutants, options.mutants or module.mutants, module.seed, changed)
    survived = _survivors(module, tried, root, options.jobs)
    verdict = judge(Result(module, tried, survived), known, {mutant.key for mutant in mutants})
    print(f"{module.name}: {len(tried)} of {len(mutants)} mutants tried, {len(survived)} survived, ", end="")
    print(f"{time.monotonic() - begin:.0f} s", findings_text(verdict, original), sep="\n", flush=True)
    return verdict.result, verdict.passed


def _survivors(module: Module, tried: list[Mutant], root: Path, jobs: int) -> list[Mutant]:
    with tempfile.TemporaryDirectory(prefix="mutate") as folder:
        attempt = partial(_is_killed, module, root, Path(folder))
        with ProcessPoolExecutor(min(jobs, len(tried)), multiprocessing.get_context("fork")) as pool:
            killed = list(pool.map(attempt, tried))
    return [mutant for mutant, was_killed in zip(tried, killed, strict=True) if not was_killed]


def _is_killed(module: Module, root: Path, folder: Path, mutant: Mutant) -> bool:
    return _bench(module, root, folder).kills(mutant)


@cache
def _bench(module: Module, root: Path, folder: Path) -> Bench:
    """One for each process of the pool."""
    return Bench(module, root, Path(tempfile.mkdtemp(dir=folder)))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CleanRunFailed, ValueError) as error:
        sys.exit(f"{error}")
