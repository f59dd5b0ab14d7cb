"""Waiting for a cluster: what has ended is reported at once, and a timeout comes with the state of its nodes."""

import json
import os
from pathlib import Path

import pytest

from e2e.cluster import waiting
from e2e.cluster.commands import CommandFailed
from e2e.cluster.processes import ProcessTable, remember, remembered
from e2e.cluster.watching import MAX_ENDS, ClusterWatch, NodeLogs, ProcessEnded

NO_PID = 2**22 - 1


class Clock:
    """Sleeping takes a second of its time, and none of ours."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


@pytest.fixture
def processes(tmp_path: Path) -> ProcessTable:
    """One that runs."""
    table = ProcessTable(tmp_path / "processes", tmp_path / "log")
    table.records.mkdir()
    table.logs.mkdir()
    remember(table.record("etcd"), os.getpid(), ["etcd"])
    return table


@pytest.fixture
def node(tmp_path: Path) -> NodeLogs:
    folder = tmp_path / "node1"
    folder.mkdir()
    (folder / "kubelet.log").write_text("cannot find filesystem info\n")
    (folder / "containerd.log").write_text("containerd successfully booted\n")
    return NodeLogs("node1", folder)


def test_a_process_that_has_ended_is_reported_at_once_with_its_log(processes: ProcessTable, clock: Clock) -> None:
    def ends_meanwhile() -> bool:
        if clock.now == 3:
            processes.record("node2").write_text(json.dumps({"pid": NO_PID, "started": 7, "command": []}))
            (processes.logs / "node2.log").write_text("line 9: mount: exit status 1\n")
        return False

    with pytest.raises(ProcessEnded, match="waited for nodes, but node2 has ended; .*\nline 9: mount: exit status 1"):
        ClusterWatch(processes).wait_until(ends_meanwhile, "nodes", timeout_seconds=720)
    assert clock.now == 4


def test_a_process_that_ended_before_it_was_recorded_does_not_run(processes: ProcessTable) -> None:
    remember(processes.record("brief"), NO_PID, ["brief"])
    assert remembered(processes.record("brief")) is None
    assert processes.ended() == ["brief"]


def test_a_program_of_a_node_may_be_started_again_but_not_for_ever(
    processes: ProcessTable, node: NodeLogs, clock: Clock
) -> None:
    (node.folder / "ended").write_text("kubelet 1\n" * (MAX_ENDS - 1) + "containerd 2\n")
    assert ClusterWatch(processes, [node]).wait_until(lambda: clock.now > 5, "nodes", 720)
    with (node.folder / "ended").open("a") as file:
        file.write("kubelet 255\n")
    with pytest.raises(ProcessEnded, match=f"kubelet of node1 has ended {MAX_ENDS} times.*\ncannot find filesystem"):
        ClusterWatch(processes, [node]).wait_until(lambda: False, "nodes", 720)
    node.forget_ends()
    assert ClusterWatch(processes, [node]).wait_until(lambda: True, "nodes", 720)


def test_nodes_that_are_not_ready_say_why(processes: ProcessTable, node: NodeLogs, clock: Clock) -> None:
    ready = {"type": "Ready", "status": "True"}
    waits = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no network"}
    rows = [
        {"metadata": {"name": name}, "status": {"conditions": [it]}} for name, it in (("node1", waits), ("n2", ready))
    ]
    (node.folder / "ended").write_text("kubelet 1\n")
    watch = ClusterWatch(processes, [node, NodeLogs("n2", node.folder)], lambda *_: json.dumps({"items": rows}))
    with pytest.raises(TimeoutError) as raised:
        watch.wait_until(lambda: False, "2 nodes to be Ready", 5)
    said = str(raised.value)
    assert "s for 2 nodes to be Ready" in said and "n2" not in said
    assert "node1 is not Ready:\n  Ready=False KubeletNotReady: no network" in said
    assert "kubelet of node1 ended 1 times" in said
    assert "cannot find filesystem info" in said and "successfully booted" in said


def test_an_api_server_that_fails_to_answer_is_asked_again(
    processes: ProcessTable, node: NodeLogs, clock: Clock
) -> None:
    def refuses(*_: object) -> str:
        raise CommandFailed("kubectl: connection refused")

    def slow() -> str:
        return "yes" if clock.now > 3 else refuses()

    watch = ClusterWatch(processes, [node], refuses)
    assert watch.wait_until(slow, "an answer", 720) == "yes"
    with pytest.raises(TimeoutError, match="(?s)an answer.*connection refused.*node1 is not Ready.*cannot find"):
        watch.wait_until(refuses, "an answer", 5)
