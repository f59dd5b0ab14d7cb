"""Real roots with a light preload: who gets a server of them, and who ends with whom."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from rljob_worker.forkserver.client import ForkServer, fork_root, open_fork_server
from rljob_worker.forkserver.environment import ROOT
from rljob_worker.forkserver.tests.asking import LIGHT, THREADED, ask, ended, plain_environment
from rljob_worker.launcher.children import worker_environment
from rljob_worker.tests.waiting import is_gone, parent_of, wait_for


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """Process id of a root that listens where `launcher` looks."""
    with fork_root(plain_environment(), LIGHT, tmp_path / "root.sock", tmp_path / "root.log") as pid:
        yield pid


def launcher(tmp_path: Path, **env: str) -> ForkServer:
    """The server that a launcher of this environment, changed by `env`, opens."""
    return open_fork_server({**plain_environment(), ROOT: str(tmp_path / "root.sock"), **env}, LIGHT)


def test_every_launcher_gets_a_server_of_its_own_forked_from_the_root(root: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(closing(launcher(tmp_path))) for _ in range(2)]
        assert len({server.pid for server in servers}) == 2
        for server in servers:
            assert parent_of(server.pid) == root
            said = ask(server, tmp_path, COLOUR="green").report()
            assert said["parent"] == server.pid and said["environment"]["COLOUR"] == "green"
            assert said["forked"] and "drawn" in said, "numpy came with the root"


def test_a_server_that_ended_leaves_the_root_for_the_next(root: int, tmp_path: Path) -> None:
    for _ in range(2):
        with closing(launcher(tmp_path)) as server:
            asked = ask(server, tmp_path, SCRIPT={"exit": 5})
            assert ended(server) == (asked.name, 5)
        wait_for(lambda pid=server.pid: is_gone(pid))
    assert not is_gone(root)


def test_a_signal_to_every_process_of_a_step_does_not_end_the_root(root: int, tmp_path: Path) -> None:
    with closing(launcher(tmp_path)) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(root, number)
            os.kill(server.pid, number)
        assert ask(server, tmp_path).report()["forked"]
    with closing(launcher(tmp_path)) as server:
        assert parent_of(server.pid) == root


def test_an_environment_that_libraries_read_early_gets_a_server_with_its_own_imports(root: int, tmp_path: Path) -> None:
    with closing(launcher(tmp_path, OMP_NUM_THREADS="7")) as server:
        assert parent_of(server.pid) == os.getpid()
        assert ask(server, tmp_path, OMP_NUM_THREADS="7").report()["forked"]


def test_a_root_that_cannot_be_forked_refuses(tmp_path: Path) -> None:
    with (
        fork_root(plain_environment(), THREADED, tmp_path / "root.sock", tmp_path / "root.log"),
        closing(launcher(tmp_path)) as server,
    ):
        assert parent_of(server.pid) == os.getpid()
        assert ask(server, tmp_path).report()["forked"], "its own preload is light"


def test_a_root_that_is_gone_is_done_without(tmp_path: Path) -> None:
    with closing(launcher(tmp_path)) as server:
        assert parent_of(server.pid) == os.getpid()


def hello(**message: object) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "sent",
    [b"", b"\0\0", hello(key="another"), hello(), b"\0\0\0\x01?"],
    ids=["nothing", "half", "and does not wait for the refusal", "no hello", "no JSON"],
)
def test_whatever_a_caller_says_before_it_hangs_up_the_next_one_is_served(
    root: int, tmp_path: Path, sent: bytes
) -> None:
    with closing(launcher(tmp_path)) as earlier:
        pid = ask(earlier, tmp_path).report()["pid"]
        os.kill(root, signal.SIGSTOP)  # so that the caller is gone before it is heard
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "root.sock"))
            caller.sendall(sent)
        os.kill(root, signal.SIGCONT)
        with closing(launcher(tmp_path)) as server:
            assert parent_of(server.pid) == root
        assert not is_gone(pid)


@pytest.mark.slow
def test_a_caller_that_says_nothing_does_not_keep_others_waiting_for_long(root: int, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(tmp_path / "root.sock"))
        with closing(launcher(tmp_path)) as server:
            assert parent_of(server.pid) == root


def test_a_broken_hello_leaves_no_descriptor_behind(root: int, tmp_path: Path) -> None:
    def opened() -> int:
        with closing(launcher(tmp_path)):  # whatever came before has been heard
            return len(os.listdir(f"/proc/{root}/fd"))

    before = opened()
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "root.sock"))
            socket.send_fds(caller, [b"\0\0"], [0, 1, 2])
    assert opened() == before


def test_a_worker_is_where_its_launcher_is_and_knows_of_no_root(
    root: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(launcher(tmp_path)) as server:
        assert ask(server, tmp_path).report()["folder"] == str(tmp_path)
    monkeypatch.setenv(ROOT, "/run/root.sock")
    assert ROOT not in worker_environment()


def test_servers_and_workers_die_with_a_killed_root(root: int, tmp_path: Path) -> None:
    with closing(launcher(tmp_path)) as server:
        pid = ask(server, tmp_path).report()["pid"]
        os.kill(root, signal.SIGKILL)
        wait_for(lambda: is_gone(server.pid) and is_gone(pid))


def test_a_root_dies_with_its_killed_owner_and_all_below_it(tmp_path: Path) -> None:
    owner_program = str(Path(__file__).with_name("root_owner.py"))
    command = [sys.executable, owner_program, str(tmp_path / "root.sock"), str(tmp_path / "root.log"), *LIGHT]
    with subprocess.Popen(command, env=plain_environment(), stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        root = int(owner.stdout.readline())
        wait_for((tmp_path / "root.sock").exists)
        with closing(launcher(tmp_path)) as server:
            pid = ask(server, tmp_path).report()["pid"]
            owner.kill()
            wait_for(lambda: is_gone(root) and is_gone(server.pid) and is_gone(pid))
