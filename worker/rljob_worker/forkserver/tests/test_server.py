"""Real fork servers with a light preload, and real forks of them."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rljob_worker.forkserver.client import ForkServer
from rljob_worker.forkserver.tests.asking import LIGHT, SCRIPTED, THREADED, OwnServer, ask, ended, plain_environment
from rljob_worker.tests.waiting import is_gone, wait_for


@pytest.fixture
def server() -> Iterator[OwnServer]:
    with closing(OwnServer(plain_environment(), LIGHT)) as opened:
        yield opened


def test_a_fork_is_the_process_that_was_asked_for(server: OwnServer, tmp_path: Path) -> None:
    said = ask(server, tmp_path, COLOUR="green", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}").report()
    assert said["forked"] and said["parent"] == server.pid
    assert said["environment"]["COLOUR"] == "green" and "OPENBLAS_NUM_THREADS" not in said["environment"]
    assert said["path"][0] == str(tmp_path)
    assert said["arguments"][0].endswith("scripted.py"), "as `python -m` has it"
    assert said["group"] == said["pid"], "it leads a process group of its own"


def test_a_fork_holds_no_descriptor_of_its_server(server: OwnServer, tmp_path: Path) -> None:
    ask(server, tmp_path, "first").report()
    said = ask(server, tmp_path, "second").report()
    # standard input, output and errors, the pipe, and the folder that lists them
    assert len(said["descriptors"]) == 5


def test_ps_shows_a_fork_as_what_it_is(tmp_path: Path) -> None:
    placeholder = {"RLJOB_FAMILY": "0" * 8}
    with closing(OwnServer({**plain_environment(), **placeholder}, LIGHT)) as server:
        said = ask(server, tmp_path, RLJOB_FAMILY="cafecafe").report()
    assert said["command_line"] == [sys.executable, "-P", "-m", SCRIPTED]
    assert "RLJOB_FAMILY=cafecafe" in said["first_environment"]
    assert said["environment"]["HOME"] == os.environ["HOME"]


def test_code_of_users_is_only_in_forks(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import users_code\n")
    (tmp_path / "users_code.py").write_text("print('imported')\n")
    path = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    with closing(OwnServer({**plain_environment(), **path}, LIGHT)) as server:
        assert not ask(server, tmp_path, **path).report()["users_code"]


def test_forks_draw_different_numbers(server: OwnServer, tmp_path: Path) -> None:
    drawn = {ask(server, tmp_path, f"worker-{number}").report()["drawn"] for number in range(3)}
    assert len(drawn) == 3


ENDS = {
    "done": ({"exit": 0}, 0, ""),
    "mistaken": ({"exit": 65}, 65, ""),
    "said": ({"exit": "no such model"}, 1, "no such model\n"),
    "raised": ({"raise": "no idea"}, 1, "LookupError: no idea"),
    "refused": (
        {"open": "/no/such/file"},
        1,
        "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'",
    ),
}


def test_ends_are_told_as_of_a_program(server: OwnServer, tmp_path: Path) -> None:
    for name, (script, status, log) in ENDS.items():
        asked = ask(server, tmp_path, name, SCRIPT=script)
        assert ended(server) == (name, status)
        assert log in asked.log.read_text() and bool(log) == bool(asked.log.read_text())


def test_a_killed_fork_is_told_with_its_signal_and_its_name(server: OwnServer, tmp_path: Path) -> None:
    first, second = ask(server, tmp_path, "first"), ask(server, tmp_path, "second")
    os.kill(second.report()["pid"], signal.SIGKILL)
    assert ended(server) == ("second", -signal.SIGKILL)
    os.kill(first.report()["pid"], signal.SIGSEGV)
    assert ended(server) == ("first", -signal.SIGSEGV)


def test_a_signal_waits_until_the_module_listens(server: OwnServer, tmp_path: Path) -> None:
    asked = ask(server, tmp_path)
    message = server.receive()
    assert message is not None
    os.kill(message["pid"], signal.SIGTERM)
    assert ended(server) == ("worker-0", 1)
    assert asked.log.read_text() == "heard SIGTERM\n"


def test_workers_die_with_their_server(server: OwnServer, tmp_path: Path) -> None:
    pids = [ask(server, tmp_path, f"worker-{number}").report()["pid"] for number in range(2)]
    server.kill()
    for pid in pids:
        wait_for(lambda pid=pid: is_gone(pid))
    while server.receive() is not None:  # what it had said before
        pass


def test_what_a_caller_asked_for_ends_with_its_channel(server: OwnServer, tmp_path: Path) -> None:
    with closing(ForkServer(server.root.path, any_environment=True)) as other:
        pid = ask(other, tmp_path).report()["pid"]
    wait_for(lambda: is_gone(pid))
    assert ask(server, tmp_path, "worker-1").report()["parent"] == server.pid


def test_a_server_ends_with_its_owner_and_its_workers_with_it(server: OwnServer, tmp_path: Path) -> None:
    pid = ask(server, tmp_path).report()["pid"]
    server.close()
    wait_for(lambda: is_gone(server.pid) and is_gone(pid))


@pytest.mark.parametrize(
    ("preload", "why"),
    [
        (THREADED, "left threads behind: python"),
        (("rljob_worker.no_such_module",), "No module named"),
        ((*LIGHT, "rljob_worker.forkserver.tests.exiting_early"), "install the other one first"),
    ],
)
def test_a_server_that_cannot_be_forked_says_why_and_starts_programs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], preload: tuple[str, ...], why: str
) -> None:
    with closing(OwnServer(plain_environment(), preload)) as server:
        said = ask(server, tmp_path, SCRIPT={"exit": 3}).report()
        assert ended(server) == ("worker-0", 3)
    assert not said["forked"] and said["group"] == said["pid"] and said["parent"] == server.pid
    assert why in capfd.readouterr().err


def test_what_a_fork_says_is_in_its_log_before_anything_can_kill_it(server: OwnServer, tmp_path: Path) -> None:
    asked = ask(server, tmp_path, SCRIPT={"say": "step 1"})
    os.kill(asked.report()["pid"], signal.SIGKILL)
    assert ended(server) == ("worker-0", -signal.SIGKILL)
    assert asked.log.read_text() == "step 1\n"


def test_a_users_module_in_place_of_an_imported_one_is_used_and_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "numpy.py").touch()
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    with closing(OwnServer(plain_environment(), LIGHT)) as server:
        assert not ask(server, tmp_path, PYTHONPATH=path).report()["forked"]
        assert "worker-0 imports for itself: PYTHONPATH has its own numpy" in capfd.readouterr().err
        assert ask(server, tmp_path).report()["forked"], "the next one does not"


def test_signals_to_whoever_is_there_leave_the_server_to_its_launcher(server: OwnServer, tmp_path: Path) -> None:
    ask(server, tmp_path).report()
    assert os.getpgid(server.pid) == server.pid != os.getpgid(0)
    for signum in (signal.SIGTERM, signal.SIGINT):
        os.kill(server.pid, signum)
    assert ask(server, tmp_path, "worker-1").report()["parent"] == server.pid


def test_programs_begin_with_the_usual_signals(tmp_path: Path) -> None:
    """`yes | head -1` ends by SIGPIPE, silently."""
    with closing(OwnServer(plain_environment(), ())) as server:
        asked = ask(server, tmp_path, program=("sh", "-c", "yes | head -1"))
        assert ended(server) == ("worker-0", 0)
    assert asked.log.read_text() == "y\n"


def test_without_a_preload_nothing_is_forked(tmp_path: Path) -> None:
    with closing(OwnServer(plain_environment(), ())) as server:
        assert not ask(server, tmp_path).report()["forked"]


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with closing(OwnServer(plain_environment(), ())) as server:
        asked = ask(server, tmp_path, program=("/no/such/program",))
        assert ended(server) == ("worker-0", 127)
    assert asked.log.read_text() == "cannot start /no/such/program: No such file or directory\n"
