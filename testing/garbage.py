"""A pytest plugin: the garbage collector passes over what collection makes, and looks at the rest less often.

Modules, functions and items stay until the process ends. Without this every full collection visits all of them: while
tests are collected, in each test that calls `gc.collect`, and in each process that a test forks, which copies them.
Python's own threshold of 700 new objects makes a tenth of the time of tests that plan jobs.
"""

from __future__ import annotations

import gc

import pytest

NEW_OBJECTS = 50_000
"""More of them than have gone begin a collection."""


def pytest_configure() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 20, 20)
    gc.enable()
