"""The order of tests, as a pytest plugin: where several processes share them, each begins with long ones.

A long test that begins last keeps one process busy while the others have nothing left. Tests that run ranks, or fork
processes from the server that ranks come from, all go to one process: the server imports torch once, ranks stay for the
next test, and are four times as fast once they have trained.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
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
    "worker/rljob_worker/tests/test_conversation_jobs.py",
    "worker/rljob_worker/engines/tests/test_compiling.py",
    "worker/rljob_worker/databuffer/tests/test_hung.py",
    "tests/test_docs_site.py",
    "worker/rljob_worker/run_page/tests/test_page.py",
    "tests/test_tests.py",
    "tests/test_language.py",
)
"""Files with a test that takes seconds by itself, the longest first."""
RANKS = frozenset({"run_ranks", "run_fresh_ranks", "forking"})
"""Names by which a module imports what starts the fork server of ranks, which loads torch for seconds."""
Test = TypeVar("Test")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    yield  # after all that choose tests
    if processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        items[:] = long_first(items, file_of, int(processes), {file_of(item) for item in items if runs_ranks(item)})


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def runs_ranks(item: pytest.Item) -> bool:
    """Whether its module can run work in the ranks of the session, or start the server that these are forks of."""
    return isinstance(item, pytest.Function) and not RANKS.isdisjoint(vars(item.module))


def long_first(
    tests: Sequence[Test], file_of: Callable[[Test], str], num_processes: int, together: Collection[str] = ()
) -> list[Test]:
    """Each process has an equal part of the tests at first, one part behind the other: all begin with files of `LONG`,
    which are dealt out in turn, and go on with the others as they come. The first has the files `together` in between,
    as far as they fit into its part."""
    long: dict[str, list[Test]] = {file: [] for file in LONG}
    others: list[Test] = []
    for test in sorted(tests, key=lambda test: file_of(test) not in together):
        long.get(file_of(test), others).append(test)
    rest, left = iter(others), len(tests)
    ordered: list[Test] = []
    for process in range(num_processes):
        first = [test for file in LONG[process::num_processes] for test in long[file]]
        size = left // (num_processes - process)
        ordered += first + list(islice(rest, max(0, size - len(first))))
        left -= size
    return [*ordered, *rest]
