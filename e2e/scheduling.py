"""Several test processes, each with a cluster of its own: `pytest -p e2e.scheduling -n 3 e2e`.

A plugin and not part of conftest.py, which `make test` reads, too.
"""

import os
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from e2e.cluster.cluster import backend
from e2e.cluster.network import MAX_CLUSTERS

LONG = (
    "test_lifecycle",
    "test_elastic",
    "test_services",
    "test_learning",
    "test_versions",
    "test_kueue",
    "test_failures",
    "test_agents",
)
"""Modules with tests that take minutes by themselves, the longest first."""


class SharedFixtures(LoadScopeScheduling):
    """A process gets one test after another; those of a file or a folder together that share a fixture of theirs."""

    def _split_scope(self, nodeid: str) -> str:
        file = self.config.rootpath / nodeid.partition("::")[0]
        if has_fixtures("package", file.with_name("conftest.py")):
            return str(file.parent)
        return str(file) if has_fixtures("module", file) else nodeid


@cache
def has_fixtures(scope: str, file: Path) -> bool:
    return file.exists() and f'scope="{scope}"' in file.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedFixtures:
    return SharedFixtures(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests before short ones, which then fill what is left of the processes' time."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Takes down the clusters of test processes that were killed, as xdist does after Ctrl-C."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for index in range(MAX_CLUSTERS):
            backend().clear_abandoned(index)
