"""Whose a cluster is: what a killed process left behind is in nobody's way."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.processes import ProcessTable
from e2e.cluster.spec import ClusterSpec, RunDir, claim

SPEC = ClusterSpec(index=5, num_nodes=0)
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


class OnPaper(LocalCluster):
    """Takes no link of this machine away: a cluster of the same index may be up outside the test."""

    def remove_bridge(self) -> None:
        pass


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessTable]:
    """A living process called `sleeper`; clusters have their folders in this test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = ProcessTable(tmp_path / "processes", tmp_path / "log")
    table.start("sleeper", SLEEP)
    yield table
    table.stop("sleeper")


def claimed_by(sleeper: ProcessTable) -> RunDir:
    """A cluster whose owner is the sleeper."""
    folder = claim(SPEC)
    folder.owner.write_text(sleeper.record("sleeper").read_text())
    return folder


def test_a_cluster_of_a_living_process_is_left_alone_and_refused_to_others(sleeper: ProcessTable) -> None:
    folder = claimed_by(sleeper)
    OnPaper.clear_abandoned(SPEC.index)
    assert folder.root.exists()
    with pytest.raises(RuntimeError, match=r"cluster 5 is up: `python -m e2e.cluster --index 5 down` ends it"):
        claim(SPEC)


def test_a_cluster_of_a_process_that_was_killed_is_taken_down(sleeper: ProcessTable) -> None:
    folder = claimed_by(sleeper)
    folder.processes.start("etcd", SLEEP)
    sleeper.stop("sleeper")
    OnPaper.clear_abandoned(SPEC.index)
    assert (folder.root.exists(), folder.processes.pid("etcd")) == (False, None)
    claim(SPEC)


def test_a_cluster_that_was_left_to_run_stays_while_any_of_it_lives(sleeper: ProcessTable) -> None:
    cluster = OnPaper(SPEC, claim(SPEC))
    cluster.leave_running()
    cluster.run_dir.processes.start("etcd", SLEEP)
    OnPaper.clear_abandoned(SPEC.index)
    assert cluster.run_dir.root.exists()
    cluster.run_dir.processes.stop("etcd")
    OnPaper.clear_abandoned(SPEC.index)
    assert not cluster.run_dir.root.exists()


def test_a_folder_whose_maker_was_killed_at_once_is_removed(sleeper: ProcessTable) -> None:
    folder = claim(SPEC)
    folder.spec.unlink()
    OnPaper.clear_abandoned(SPEC.index)
    assert not folder.root.exists()
    OnPaper.clear_abandoned(SPEC.index)  # nothing is there: nothing happens
