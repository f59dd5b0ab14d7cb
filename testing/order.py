"""The order of tests, as a pytest plugin: where several processes share them, each begins with long ones.

A long test that begins last keeps one process busy while the others have nothing left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import pytest

LONG = (
    "worker/rljob_worker/tests/test_resume.py",
    "worker/rljob_worker/services/tests/test_serving.py",
    "worker/rljob_worker/tests/test_matrix.py",
    "worker/rljob_worker/tests/test_examples.py",
    "worker/rljob_worker/tests/test_sample.py",
    "worker/rljob_worker/tests/test_first_step.py",
    "worker/rljob_worker/tests/test_failures.py",
    "worker/rljob_worker/engines/tests/test_compiling.py",
    "worker/rljob_worker/engines/tests/test_drawn_weights.py",
)
"""Files with a test that takes seconds by itself, the longest first."""
Test = TypeVar("Test")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    yield  # after all that choose tests
    if processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        items[:] = long_first(items, lambda item: item.nodeid.partition("::")[0], int(processes))


def long_first(tests: Sequence[Test], file_of: Callable[[Test], str], num_processes: int) -> list[Test]:
    """Each process has an equal part of the tests at first, one part behind the other: all begin with files of `LONG`,
    which are dealt out in turn, and go on with the others as they come."""
    long: dict[str, list[Test]] = {file: [] for file in LONG}
    others: list[Test] = []
    for test in tests:
        long.get(file_of(test), others).append(test)
    rest, left = iter(others), len(tests)
    ordered: list[Test] = []
    for process in range(num_processes):
        first = [test for file in LONG[process::num_processes] for test in long[file]]
        size = left // (num_processes - process)
        ordered += first + list(islice(rest, max(0, size - len(first))))
        left -= size
    return [*ordered, *rest]
