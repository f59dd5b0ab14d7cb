"""A pytest plugin: a test that leaves a thread, a process or an environment variable behind fails, by its name.

What a fixture of a wider scope than one test starts or sets stays until that fixture ends. A pool of such a fixture
may start threads in any test, and a cluster processes: while there is a fixture that has some, nobody answers for more
of the kind, and who ran last when the fixture ended answers for those that are left.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rljob_api.tests.timeouts import TIMEOUT_FACTOR

END_SECONDS = 5.0 * TIMEOUT_FACTOR
"""How long a thread or a process that is about to end may take."""
LIBRARY_THREADS = ("tqdm_monitor",)
"""Beginnings of the names of threads that a library starts on first use and ends with the process."""
LIBRARY_VARIABLES = ("VLLM_",)
"""Beginnings of the names of variables that a library sets, which no test can help; they are put back."""
SESSION_COMMANDS = re.compile(r"multiprocessing\.(forkserver|resource_tracker)")
"""Command lines of multiprocessing's servers, which the first test to need them starts for all."""
SESSION_MARK = b"RLJOB_TEST_MARK=" + 16 * b"0"
"""In the environment of the root fork server that `rljob_worker.tests.session_root` starts for all."""
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
"""Audit events of a new process. Only after one of them are children searched for."""
CHANGES = frozenset({"os.putenv", "os.unsetenv"})
"""Audit events of a variable. Only after one of them are variables compared, which takes longer than many a test."""
CURRENT_TEST = "PYTEST_CURRENT_TEST"
"""The variable that pytest sets and deletes in each test."""


class LeakLedger:
    """The threads, child processes and variables that may be there."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.children: set[int] = set()
        self.variables: dict[str, str] = {}
        self._has_started = self._has_changed = True
        # a global is gone before the last events of an interpreter that ends
        sys.addaudithook(partial(self._note, STARTS, CHANGES, os.fsencode(CURRENT_TEST)))

    def _note(
        self, starts: frozenset[str], changes: frozenset[str], unless: bytes, event: str, arguments: tuple[Any, ...]
    ) -> None:
        if event in starts:
            self._has_started = True
        elif event in changes and arguments[0] != unless:
            self._has_changed = True

    def accept(self) -> None:
        """Whatever is there now may be there."""
        self.threads = set(threading.enumerate())
        if self._has_changed:
            self._has_changed = False
            self.variables = variables()
        if self._has_started:
            self._has_started = False
            self.children = children()

    def leaks(self, *, threads: bool, processes: bool) -> list[str]:
        """What is there beyond that, of threads and processes only where asked. Variables are put back; the rest is
        accepted, so that one test answers for it."""
        result = list(self._variables())
        if threads:
            result += until_gone(self._threads)
        if processes:
            result += until_gone(self._processes)
        self.accept()
        return result

    def _variables(self) -> Iterator[str]:
        if not self._has_changed:
            return
        now = variables()
        for name in sorted(now.keys() | self.variables.keys()):
            before = self.variables.get(name)
            if now.get(name) != before:
                restore(name, before)
                if not name.startswith(LIBRARY_VARIABLES):
                    yield f"environment variable {name} {_change(before, now.get(name))}"

    def _threads(self) -> list[str]:
        new = set(threading.enumerate()) - self.threads
        ours = (item for item in new if not isinstance(item, threading._DummyThread))  # of threads of C++
        return sorted(f"thread {thread.name}" for thread in ours if not thread.name.startswith(LIBRARY_THREADS))

    def _processes(self) -> list[str]:
        if not self._has_started:
            return []
        new = sorted(children() - self.children)
        return [f"process {pid}: {command}" for pid in new if (command := command_of(pid)) and not _of_session(pid)]


def until_gone(look: Callable[[], list[str]]) -> list[str]:
    """What is still there after the time that it may take to end."""
    deadline = time.monotonic() + END_SECONDS
    while (result := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return result


def restore(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value


def _change(before: str | None, now: str | None) -> str:
    return "set" if before is None else "deleted" if now is None else "changed"


def variables() -> dict[str, str]:
    """Those of this process, but for the one that pytest sets."""
    return {name: value for name, value in os.environ.items() if name != CURRENT_TEST}


def children() -> set[int]:
    """Process ids of the running children of this process."""
    own = os.getpid()
    threads = os.listdir(f"/proc/{own}/task")
    # a list that is read while one in it goes away may lack the next one: it is read twice
    pids = {int(pid) for thread in 2 * threads for pid in _read(own, f"task/{thread}/children").split()}
    return {pid for pid in pids if _is_running(pid)}


def _is_running(pid: int) -> bool:
    state, *_ = _read(pid, "stat").rpartition(b")")[2].split() or (b"Z",)
    return state != b"Z"


def command_of(pid: int) -> str:
    """Empty once it has ended."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _of_session(pid: int) -> bool:
    return bool(SESSION_COMMANDS.search(command_of(pid))) or SESSION_MARK in _read(pid, "environ").split(b"\0")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended
        return b""


@pytest.fixture
def own_environment() -> Iterator[None]:
    """For a test of what sets variables of its process for good."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


class Plugin:
    """The hooks."""

    def __init__(self) -> None:
        self._ledger = LeakLedger()
        self._before: dict[Any, dict[str, str | None]] = {}
        """The values that variables had before a fixture of a wider scope set them, by fixture."""
        self._threads: dict[Any, set[threading.Thread]] = {}
        self._processes: dict[Any, set[int]] = {}
        """What there was before a fixture of a wider scope started some, by fixture."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._ledger.accept()
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        before, threads, processes = variables(), set(threading.enumerate()), self._ledger.children
        try:
            return (yield)
        finally:
            self._ledger.accept()  # fixtures of wider scopes are set up before those of the test
            if self._ledger.threads - threads:
                self._threads[fixturedef] = threads
            if any(not _of_session(pid) for pid in self._ledger.children - processes):
                self._processes[fixturedef] = processes
            names = {name for name, _ in before.items() ^ variables().items()}
            self._before[fixturedef] = {name: before.get(name) for name in names}

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._ledger.threads = self._threads.pop(fixturedef, self._ledger.threads)
        self._ledger.children = self._processes.pop(fixturedef, self._ledger.children)
        for name, value in self._before.pop(fixturedef, {}).items():
            if os.environ.get(name) == value:
                self._ledger.variables.pop(name, None)
                self._ledger.variables |= {} if value is None else {name: value}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield
        if leaks := self._ledger.leaks(threads=not self._threads, processes=not self._processes):
            pytest.fail(f"{item.nodeid} left behind:\n" + "\n".join(leaks), pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Plugin(), "leaks of tests")
    if config.option.timeout is None:
        config.option.timeout = 600 * TIMEOUT_FACTOR
