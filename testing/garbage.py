"""A pytest plugin: the garbage collector passes over what collection makes.

Modules, functions and items stay until the process ends. Without this every full collection visits all of them: while
tests are collected, in each test that calls `gc.collect`, and in each process that a test forks, which copies them.
"""

from __future__ import annotations

import gc

import pytest


def pytest_configure() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
