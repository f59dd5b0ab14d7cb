"""Tiers of tests, as a pytest plugin: which make target runs a test.

    test    `make test`: what has no other tier
    slow    `make test-slow`: marked `slow`; each run of the gate takes one part of eight; in e2e `make e2e-slow`, of
            which each run takes one part of four
    chart   `make chart-test`: in charts/tests
    e2e     `make e2e`: in e2e, which needs a cluster

A test that is named on the command line (`path::test`) runs whatever its tier is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

MARKED = ("slow",)
FOLDERS = {"charts/tests": "chart", "e2e": "e2e"}
"""Tiers by folder; a folder that pytest collects by itself (`testpaths`) is not part of the one around it."""
PART = re.compile(r"([1-9]\d*)/([1-9]\d*)")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("test", "slow", "all"), default="test", help="which of the tests to run")
    parser.addoption("--part", metavar="K/N", default="1/1", help="the K-th of N parts of the chosen tests")
    parser.addoption("--with-slow", metavar="K/N", help="besides the chosen tests the K-th of N parts of slow ones")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: run by `make test-slow`, not by `make test`")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    testpaths = tuple(config.getini("testpaths"))
    tiers = {item: tiers_of(_file(item.path, config.rootpath), _marks(item), testpaths) for item in items}
    if misplaced := [f"{item.nodeid}: {_problem(result)}" for item, result in tiers.items() if len(result) != 1]:
        raise pytest.UsageError("\n".join(misplaced))
    part = part_of(config.getoption("part"))
    chosen = items[:] if _all_are_named(config) else [item for item in items if _runs(config, *tiers[item])]
    keep = set(sorted(chosen, key=lambda item: item.nodeid)[part])
    if beside := config.getoption("with_slow"):
        slow = [item for item in items if tiers[item] == ["slow"]]
        keep |= set(sorted(slow, key=lambda item: item.nodeid)[part_of(beside)])
    config.hook.pytest_deselected(items=[item for item in items if item not in keep])
    items[:] = [item for item in items if item in keep]


def tiers_of(file: str, marks: Sequence[str], testpaths: Sequence[str]) -> list[str]:
    """The tiers that a test is in; exactly one, unless it is misplaced. file: relative to the checkout."""
    collected, by_folder = _by_folder(file, tuple(testpaths))
    by_mark = [tier for tier in MARKED if tier in marks]
    if by_folder == ("e2e",) and by_mark:
        return by_mark
    return [*by_folder, *by_mark] or (["test"] if collected else [])


@cache  # a file has many tests
def _by_folder(file: str, testpaths: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The innermost of the folders that pytest collects which has the file, or "", and the tiers of its folders."""
    collected = max((folder for folder in testpaths if _is_in(file, folder)), key=len, default="")
    tiers = (tier for folder, tier in FOLDERS.items() if _is_in(file, folder) and not _is_in(collected, folder))
    return collected, tuple(tiers)


def part_of(text: str) -> slice:
    """`3/8`: every eighth test, from the third. Raises UsageError for anything else."""
    match = PART.fullmatch(text)
    if not match or int(match[1]) > int(match[2]):
        raise pytest.UsageError(f"--part {text}: not K/N with 1 <= K <= N, such as 3/8")
    return slice(int(match[1]) - 1, None, int(match[2]))


def _runs(config: pytest.Config, tier: str) -> bool:
    """The tiers of folders run where their folder is named, and slow tests are not asked for."""
    wanted = config.getoption("tier")
    return wanted != "slow" if tier in FOLDERS.values() else wanted in (tier, "all")


def _all_are_named(config: pytest.Config) -> bool:
    return bool(config.args) and all("::" in argument for argument in config.args)


def _problem(tiers: list[str]) -> str:
    return f"in two tiers, {' and '.join(tiers)}" if tiers else "in no tier: add its folder to testpaths"


@cache
def _file(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _marks(item: pytest.Item) -> list[str]:
    return [mark.name for mark in item.iter_markers()]


def _is_in(file: str, folder: str) -> bool:
    return bool(file) and Path(file).is_relative_to(folder)
