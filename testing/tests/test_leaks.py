"""What a test leaves behind fails it, and no other test."""

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
LEAVING = """
import os, subprocess, sys, threading
import pytest

ENDLESS = [sys.executable, "-c", "import time; time.sleep(600)"]
kept = []

@pytest.fixture(scope="module")
def server():
    process, end = subprocess.Popen(ENDLESS), threading.Event()
    thread = threading.Thread(target=end.wait, name="of the module")
    thread.start()
    os.environ["OF_MODULE"] = "1"
    yield process
    del os.environ["OF_MODULE"]
    process.kill()
    process.wait()
    end.set()
    thread.join()

def start(name, daemon):
    end = threading.Event()
    kept.append(end)
    threading.Thread(target=end.wait, name=name, daemon=daemon).start()

@pytest.fixture(scope="class")
def pool():
    start("of the class", True)
    process = subprocess.Popen(ENDLESS)
    yield
    process.kill()
    process.wait()
    kept[0].set()

class TestPool:
    def test_starts_more(self, pool):
        kept.append(subprocess.Popen(ENDLESS))
        start("of the pool", True)
    def test_runs_last(self, pool): pass

def test_sets(): os.environ["LEFT"] = "1"
def test_changes(): os.environ["HOME"] = "/nowhere"
def test_deletes(): del os.environ["HOME"]
def test_thread(): start("stays", False)
def test_daemon(): start("stays as a daemon", True)
def test_process(): kept.append(subprocess.Popen(ENDLESS))
def test_tidy(monkeypatch):
    assert "LEFT" not in os.environ and os.environ["HOME"] != "/nowhere"
    monkeypatch.setenv("LEFT", "1")
    process = subprocess.Popen(ENDLESS)
    process.kill()
    process.wait()
    threading.Timer(0.02, len, ["ends by itself"]).start()
def test_with_server(server): assert server.poll() is None
def test_with_server_again(server): assert server.poll() is None
def test_after(): assert "OF_MODULE" in os.environ
def test_end():
    for each in kept:
        each.set() if isinstance(each, threading.Event) else (each.kill(), each.wait())
"""
EXPECTED = {
    "test_sets": "environment variable LEFT set",
    "test_changes": "environment variable HOME changed",
    "test_deletes": "environment variable HOME deleted",
    "test_thread": "thread stays",
    "test_daemon": "thread stays as a daemon",
    "test_process": "process",
    "test_runs_last": "thread of the pool",
}


def test_each_leak_fails_the_test_that_made_it(tmp_path: Path) -> None:
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "testing.leaks", "-p", "no:cacheprovider", "-q", str(tmp_path)]
    quick = {**os.environ, "RLJOB_TEST_PATIENCE": "0.05"}  # each leak is waited for
    run = subprocess.run(command, cwd=CHECKOUT, env=quick, capture_output=True, text=True)
    lines = run.stdout.splitlines()
    blamed = {
        line.rpartition("::")[2].split()[0]: lines[at + 1] for at, line in enumerate(lines) if "left behind" in line
    }
    assert blamed.keys() == EXPECTED.keys(), run.stdout
    assert all(blamed[test].startswith(words) for test, words in EXPECTED.items()), run.stdout
    processes = {line for line in lines if line.startswith("process ")}
    assert len(processes) == 2, run.stdout  # that of the class is blamed, too
    assert "13 passed, 7 errors" in run.stdout, run.stdout
