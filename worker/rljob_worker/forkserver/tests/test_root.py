"""Real roots with a light preload: what they start for whom, and who ends with whom."""

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rljob_worker.forkserver.client import ForkedChild, ForkServer, Root
from rljob_worker.forkserver.environment import ROOT
from rljob_worker.forkserver.tests.asking import (
    ENDLESS,
    LIGHT,
    THREADED,
    Asked,
    ask,
    ended,
    plain_environment,
    requested,
)
from rljob_worker.launcher.children import worker_environment
from rljob_worker.process.marked_processes import ENV_MARK
from rljob_worker.tests.waiting import is_gone, wait_for


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with closing(Root(plain_environment(), LIGHT, tmp_path / "root.sock", tmp_path / "root.log")) as started:
        yield started


def caller(tmp_path: Path) -> ForkServer:
    """A connection as a supervisor opens it."""
    return ForkServer(tmp_path / "root.sock")


def test_every_caller_gets_forks_of_the_root(root: Root, tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(2):
            server = stack.enter_context(closing(caller(tmp_path)))
            said = ask(server, tmp_path, f"launcher-{number}", RLJOB_COLOUR="green").report()
            assert said["parent"] == root.pid and said["environment"]["RLJOB_COLOUR"] == "green"
            assert said["forked"] and "drawn" in said, "numpy came with the root"


def test_a_caller_that_ended_leaves_the_root_for_the_next(root: Root, tmp_path: Path) -> None:
    for _ in range(2):
        with closing(caller(tmp_path)) as server:
            asked = ask(server, tmp_path, SCRIPT={"exit": 5})
            assert ended(server) == (asked.name, 5)
    assert not is_gone(root.pid)


def test_a_signal_to_every_process_of_a_step_does_not_end_the_root(root: Root, tmp_path: Path) -> None:
    with closing(caller(tmp_path)) as server:
        ask(server, tmp_path).report()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(root.pid, number)
    with closing(caller(tmp_path)) as server:
        assert ask(server, tmp_path).report()["forked"]


def test_an_environment_that_libraries_read_early_imports_for_itself(root: Root, tmp_path: Path) -> None:
    with closing(caller(tmp_path)) as server:
        said = ask(server, tmp_path, OMP_NUM_THREADS="7").report()
        assert said["parent"] == root.pid and not said["forked"] and said["environment"]["OMP_NUM_THREADS"] == "7"


def test_a_root_that_cannot_be_forked_starts_programs(tmp_path: Path) -> None:
    with (
        closing(Root(plain_environment(), THREADED, tmp_path / "root.sock", tmp_path / "root.log")),
        closing(caller(tmp_path)) as server,
    ):
        assert not ask(server, tmp_path).report()["forked"]


def test_a_root_that_was_killed_is_started_again(root: Root, tmp_path: Path) -> None:
    first = root.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: is_gone(first))
    with closing(root.connect()) as server:
        assert ask(server, tmp_path).report()["parent"] == root.pid != first


def test_a_root_that_imports_ends_what_is_left_when_it_is_closed(tmp_path: Path) -> None:
    mark = secrets.token_hex(16)
    root = Root(plain_environment(), ENDLESS, tmp_path / "root.sock", tmp_path / "root.log", marks=(mark,))
    with subprocess.Popen(["sleep", "1000"], env={ENV_MARK: mark}) as left:
        root.close()
        code = left.poll()
        left.kill()
    assert code == -signal.SIGTERM


@contextmanager
def child(root: Root, tmp_path: Path, **env: Any) -> Iterator[tuple[ForkedChild, Asked]]:
    """A process as a supervisor has it, and what it says."""
    with requested(tmp_path, "launcher", **env) as (request, asked):
        started = ForkedChild(root.connect(), request, asked.log)
    try:
        yield started, asked
    finally:
        started.kill()


def test_a_child_is_watched_from_its_start_to_its_end(root: Root, tmp_path: Path) -> None:
    with child(root, tmp_path, SCRIPT={"exit": 65}) as (launcher, asked):
        said = asked.report()
        assert wait_for(launcher.code) == 65 and launcher.pid == said["pid"]
    assert asked.log.read_text() == launcher.log.read_text()


def test_a_signal_that_comes_before_the_process_reaches_it_when_it_begins(root: Root, tmp_path: Path) -> None:
    os.kill(root.pid, signal.SIGSTOP)  # as one that imports
    with child(root, tmp_path) as (launcher, asked):
        launcher.signal(signal.SIGTERM)
        assert launcher.pid is None and launcher.code() is None
        os.kill(root.pid, signal.SIGCONT)
        assert wait_for(launcher.code) == 1
        assert asked.log.read_text() == "heard SIGTERM\n"


def test_an_end_does_not_wait_for_a_process_that_has_not_begun(root: Root, tmp_path: Path) -> None:
    os.kill(root.pid, signal.SIGSTOP)
    with child(root, tmp_path) as (launcher, asked):
        launcher.kill()
        assert launcher.code() == 137
        os.kill(root.pid, signal.SIGCONT)
        # killed as soon as it was forked, or never begun
        wait_for(lambda: select.select([asked.reports], [], [], 0)[0])
    with closing(caller(tmp_path)) as server:
        assert ask(server, tmp_path).report()["forked"]


def test_a_killed_child_leaves_nobody_of_its_group(root: Root, tmp_path: Path) -> None:
    with child(root, tmp_path) as (launcher, asked):
        pid = asked.report()["pid"]
        launcher.kill()
        assert launcher.code() == 137 and is_gone(pid)


def test_a_child_dies_with_a_killed_root(root: Root, tmp_path: Path) -> None:
    with child(root, tmp_path) as (launcher, asked):
        pid = asked.report()["pid"]
        os.kill(root.pid, signal.SIGKILL)
        assert wait_for(launcher.code) == 137
        wait_for(lambda: is_gone(pid))


def request(**message: object) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


STRANGE = {
    "nothing": b"",
    "half": b"\0\0",
    "and says nothing else": request(key="another"),
    "no request": request(),
    "no JSON": b"\0\0\0\x01?",
}


def test_whatever_a_caller_says_before_it_hangs_up_the_next_one_is_served(root: Root, tmp_path: Path) -> None:
    with closing(caller(tmp_path)) as earlier:
        pid = ask(earlier, tmp_path).report()["pid"]
        for name, sent in STRANGE.items():
            os.kill(root.pid, signal.SIGSTOP)  # so that the caller is gone before it is heard
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(tmp_path / "root.sock"))
                stranger.sendall(sent)
            os.kill(root.pid, signal.SIGCONT)
            with closing(caller(tmp_path)) as server:
                assert ask(server, tmp_path, f"after {name}").report()["parent"] == root.pid
            assert not is_gone(pid)


@pytest.mark.slow
def test_a_caller_that_says_nothing_does_not_keep_others_waiting_for_long(root: Root, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(tmp_path / "root.sock"))
        with closing(caller(tmp_path)) as server:
            assert ask(server, tmp_path).report()["parent"] == root.pid


def test_a_broken_request_leaves_no_descriptor_behind(root: Root, tmp_path: Path) -> None:
    def opened() -> int:
        with closing(caller(tmp_path)) as server:  # everything that came before has been handled
            ask(server, tmp_path, SCRIPT={"exit": 0}).report()
            ended(server)
            return len(os.listdir(f"/proc/{root.pid}/fd"))

    before = opened()
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(tmp_path / "root.sock"))
            socket.send_fds(stranger, [b"\0\0"], [0, 1, 2])
    wait_for(lambda: opened() == before)


def test_a_process_is_where_its_caller_is_and_a_worker_knows_of_no_root(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(caller(tmp_path)) as server:
        assert ask(server, tmp_path).report()["folder"] == str(tmp_path)
    assert ROOT not in worker_environment({ROOT: "/run/root.sock"})


def test_a_root_dies_with_its_killed_owner_and_all_below_it(tmp_path: Path) -> None:
    owner_program = str(Path(__file__).with_name("root_owner.py"))
    command = [sys.executable, owner_program, str(tmp_path / "root.sock"), str(tmp_path / "root.log"), *LIGHT]
    with subprocess.Popen(command, env=plain_environment(), stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        root = int(owner.stdout.readline())
        wait_for((tmp_path / "root.sock").exists)
        with closing(caller(tmp_path)) as server:
            pid = ask(server, tmp_path).report()["pid"]
            owner.kill()
            wait_for(lambda: is_gone(root) and is_gone(pid))
