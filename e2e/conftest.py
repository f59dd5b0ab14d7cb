"""One cluster and one installed chart for each test process; a namespace and storage for every test."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.cluster import KubeCluster, kueue
from e2e.jobs import NamespaceJobs
from e2e.operator import InstalledOperator
from e2e.prometheus import Prometheus, scraping
from e2e.storage import Storage

DEVICES = {"node2": {"huawei.com/Ascend910": 8, "nvidia.com/gpu": 2}}
"""What the fake device plugin advertises."""
SHOWN: set[BaseException] = set()
"""Errors of fixtures, which pytest keeps and raises again for every test that shares the fixture."""
FIRST_CLUSTER = int(os.environ.get("RLJOB_E2E_CLUSTER", "0"))


@pytest.fixture(scope="session")
def kueue_image() -> Iterator[Future[Path]]:
    """Where there is none yet, it takes minutes to compile: meanwhile other tests wait for their pods."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(kueue.image_archive)


@pytest.fixture(scope="session")
def cluster(kueue_image: Future[Path]) -> Iterator[KubeCluster]:
    """Two real kubelets. RLJOB_E2E_KEEP=1 leaves them running afterwards, for a look.

    Each process of `pytest -n` has its own, numbered from RLJOB_E2E_CLUSTER: a test may stop nodes, replace the
    operator or forbid pods while other tests run.

    It asks for Kueue's image so that its compilation begins with the first test that has a cluster, and with no other.
    """
    index = FIRST_CLUSTER + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if os.environ.get("RLJOB_E2E_ATTACH"):
        yield KubeCluster.attach(index)
        return
    running = KubeCluster.up(nodes=2, devices=DEVICES, index=index)
    yield running
    if os.environ.get("RLJOB_E2E_KEEP"):
        running.leave_running()
    else:
        running.down()


@pytest.fixture(scope="session")
def operator(cluster: KubeCluster) -> InstalledOperator:
    """The chart, installed as the README says."""
    installed = InstalledOperator(cluster)
    installed.install()
    return installed


@pytest.fixture(scope="session")
def seed(cluster: KubeCluster) -> Path:
    """The examples' model and data, as the worker image carries them."""
    return Storage(cluster).seed()


@pytest.fixture(scope="session")
def prometheus(cluster: KubeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes from here on."""
    with scraping(cluster, tmp_path_factory.mktemp("prometheus")) as running:
        yield running


@pytest.fixture
def jobs(cluster: KubeCluster, operator: InstalledOperator, request: pytest.FixtureRequest) -> Iterator[NamespaceJobs]:
    """A namespace that enforces the restricted Pod Security Standard; gone afterwards."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:40].strip("-")
    jobs = NamespaceJobs(cluster, name)
    jobs.create_namespace()
    yield jobs
    jobs.delete_namespace()


@pytest.fixture
def storage(cluster: KubeCluster, jobs: NamespaceJobs, seed: Path) -> Iterator[Path]:
    """A claim `storage` in the test's namespace, with model and data; the folder behind it."""
    yield Storage(cluster).claim(jobs.namespace, seed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows what cluster and operator say; the error of a shared fixture is shown in full only once."""
    report = yield
    if report.when == "setup" and report.failed and call.excinfo is not None:
        error = call.excinfo.value
        if error in SHOWN:
            report.longrepr = f"{type(error).__name__}, as shown above: {str(error).partition(chr(10))[0]}"
        SHOWN.add(error)
    fixtures = getattr(item, "funcargs", {})
    if report.when == "call" and report.failed and "jobs" in fixtures:
        report.sections.append(("cluster", fixtures["jobs"].story()))
        if "operator" in fixtures:
            report.sections.append(("operator", fixtures["operator"].logs()))
    return report
