"""Background processes: real ones, started, found again and ended."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from e2e.cluster.processes import ProcessTable, start_time, wait_gone
from e2e.cluster.waiting import wait_until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessTable]:
    table = ProcessTable(tmp_path / "processes", tmp_path / "log")
    yield table
    for name in table.names():
        table.stop(name)


def test_a_started_process_is_found_by_another_table_and_its_log_grows(processes: ProcessTable) -> None:
    pid = processes.start("sleeper", SLEEP)
    assert ProcessTable(processes.records, processes.logs).pid("sleeper") == pid
    wait_until(lambda: processes.log_tail("sleeper") == "up\n", "the log", timeout_seconds=30)


def test_a_stopped_process_is_gone_and_forgotten(processes: ProcessTable) -> None:
    pid = processes.start("sleeper", SLEEP)
    processes.stop("sleeper")
    assert start_time(pid) is None
    assert processes.names() == []


def test_an_ended_process_has_no_pid_though_nobody_reaped_it(processes: ProcessTable) -> None:
    pid = processes.start("brief", [sys.executable, "-c", "pass"])
    wait_until(lambda: processes.pid("brief") is None, "it to end", timeout_seconds=30)
    assert Path(f"/proc/{pid}").exists(), "a zombie until someone waits for it"
    os.waitpid(pid, 0)


def test_a_number_that_now_is_another_process_is_left_alone(processes: ProcessTable) -> None:
    pid = processes.start("sleeper", SLEEP)
    record = processes.record("other")
    # as if the one that was recorded had ended and this one had got its number a moment later
    record.write_text(json.dumps({"pid": pid, "started": (start_time(pid) or 0) - 1, "command": SLEEP}))
    assert processes.pid("other") is None
    processes.stop("other")
    assert processes.pid("sleeper") == pid


def test_a_process_that_ignores_its_signal_is_named(processes: ProcessTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.cluster.processes.GONE_SECONDS", 0.2)
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    pid = processes.start("stubborn", [sys.executable, "-c", program])
    wait_until(lambda: processes.log_tail("stubborn") == "up\n", "the log", timeout_seconds=30)
    with pytest.raises(TimeoutError, match=f"process {pid} still runs"):
        processes.stop("stubborn", signal.SIGTERM)


def test_a_program_that_is_not_there_is_named(processes: ProcessTable) -> None:
    with pytest.raises(FileNotFoundError, match="etcd: no program /nowhere/etcd"):
        processes.start("etcd", ["/nowhere/etcd"])


def test_waiting_for_one_that_is_long_gone_returns() -> None:
    with suppress(ChildProcessError):
        wait_gone(2**22 - 1)
