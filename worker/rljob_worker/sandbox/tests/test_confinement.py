"""Hostile user code in real processes: each attack succeeds without confinement and fails with it.

Needs Linux with Landlock of ABI 6 or later, and seccomp.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.calls import Calls, Target
from rljob_worker.sandbox.confinement import confine as confinement
from rljob_worker.sandbox.confinement.seccomp import assemble
from rljob_worker.sandbox.confinement.syscalls import NUMBERS, ON_X86_64_ONLY, number_of
from rljob_worker.sandbox.tests.calling import HERE, calling, limits
from rljob_worker.tests.waiting import is_gone, wait_for

pytestmark = pytest.mark.usefixtures("confining_kernel")


def attack(name, *, mode="Required", network=(), isolated=True, arguments=None, **changed):
    """The answer to an attack."""
    target = Target(f"attacks:{name}", {}, limits(**changed), isolated)

    async def run():
        async with calling(target, confinement=mode, network=network) as calls:
            return await calls.call("s", name, None, arguments or {})

    return asyncio.run(run())


def all_attacks(attacks, places, *, mode="Required", network=()):
    """The answers to attacks, by name and place: each in a process of its own, of one guardian."""
    targets = [Target(f"attacks:{name}", {}, limits(), isolated=True) for name in dict(attacks)]

    async def run():
        async with calling(*targets, confinement=mode, network=network) as calls:
            answers = {}
            for name, place in attacks:
                session = f"{name} {place}"
                answers[name, place] = await calls.call(session, name, None, dict(places[place]))
                await calls.end(session)
            return answers

    return asyncio.run(run())


def is_denied(answer):
    return answer.error is not None and answer.error.cause == "Raised" and "PermissionError" in answer.error.message


@pytest.fixture
def places(tmp_path):
    """What is attacked: a file of somebody's, a process, and servers of every kind."""
    secret = tmp_path / "secret"
    secret.write_text("token")
    with contextlib.ExitStack() as stack:
        script = "import signal, time\nsignal.signal(10, print)\nprint(flush=True)\ntime.sleep(1000)"
        other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        stack.callback(other.stdout.close)
        stack.callback(other.wait)
        stack.callback(other.kill)
        other.stdout.readline()
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(tmp_path / "unix"))
        unix.listen()
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0rljob-{os.getpid()}")
        abstract.listen()
        log = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        log.bind(str(tmp_path / "log"))
        yield {
            "secret": {"path": str(secret)},
            "passwd": {"path": "/etc/passwd"},
            "environ": {"path": f"/proc/{other.pid}/environ"},
            "own environ": {"path": f"/proc/{os.getpid()}/environ"},
            "new": {"path": str(tmp_path / "new")},
            "folder": {"path": str(tmp_path)},
            "processes": {"path": "/proc"},
            "module": {"path": str(HERE / "user_tools.py")},
            "process": {"pid": other.pid},
            "tcp": dict(zip(("host", "port"), tcp.getsockname(), strict=True)),
            "udp": dict(zip(("host", "port"), udp.getsockname(), strict=True)),
            "unix": {"path": str(tmp_path / "unix")},
            "abstract": {"path": f"\0rljob-{os.getpid()}"},
            "log": {"path": str(tmp_path / "log")},
            None: {},
        }


ATTACKS = [
    ("read", "secret"),
    ("read", "passwd"),
    ("read", "environ"),
    ("read", "own environ"),
    ("read_by_program", "secret"),
    ("list_folder", "folder"),
    ("list_folder", "processes"),
    ("write", "new"),
    ("truncate", "secret"),
    ("make_link", "secret"),
    ("change_mode", "secret"),
    ("set_attribute", "secret"),
    ("send_signal", "process"),
    ("trace", "process"),
    ("read_memory", "process"),
    ("slow_down", "process"),
    ("limit_other", "process"),
    ("connect", "tcp"),
    ("connect_by_fast_open", "tcp"),
    ("open_multipath", "tcp"),
    ("serve", "tcp"),
    ("send_datagram", "udp"),
    ("connect_unix", "unix"),
    ("connect_unix", "abstract"),
    ("redirect_pair", "log"),
    ("leave_session", None),
    ("leave_group", None),
    ("hidden_memory", None),
]
CONFINED_ONLY = [
    ("change_mode", "module"),
    ("change_time", "module"),
    ("new_namespace", None),
    ("new_namespace_by_clone", None),
    ("use_privilege", None),
    ("io_uring", None),
]
"""Attacks that would change this checkout, that need a privilege without confinement, or that a kernel may not have."""


def test_attacks_fail(places):
    answers = all_attacks(ATTACKS + CONFINED_ONLY, places)
    assert len(answers) == len(ATTACKS) + len(CONFINED_ONLY)
    assert {attack: answer for attack, answer in answers.items() if not is_refused(answer)} == {}
    assert Path(places["secret"]["path"]).read_text() == "token" and not Path(places["new"]["path"]).exists()


def test_an_isolated_process_has_nothing_of_another_nor_of_what_it_is_a_copy_of():
    attacks = ("read", "write", "truncate", "list_folder", "send_signal")
    names = ["user_tools:file_in_folder", "user_tools:own_pid", *(f"attacks:{name}" for name in attacks)]

    async def run():
        targets = [Target(name, {}, limits(), isolated=True) for name in names]
        async with calling(*targets, confinement="Required") as calls:
            _, folder = (await calls.call("a", "file_in_folder", None, {"file": "x"})).value
            pid = (await calls.call("a", "own_pid", None, {})).value
            made = [(name, {"path": f"{folder}/x"}) for name in attacks[:3]]
            made += [("list_folder", {"path": path}) for path in (folder, os.path.dirname(folder))]
            for name, arguments in [*made, ("send_signal", {"pid": pid})]:
                answer = await calls.call("b", name, None, arguments)
                assert is_denied(answer), (name, arguments, answer)
            assert (await calls.call("a", "file_in_folder", None, {"file": "x"})).value == [False, folder]

    asyncio.run(run())


def is_refused(answer):
    """By the kernel, whatever a library makes of that."""
    return (
        answer.error is not None
        and answer.error.cause == "Raised"
        and any(word in answer.error.message for word in ("PermissionError", "OSError", "CalledProcessError"))
    )


ON_THE_NETWORK = [
    ("connect", "tcp"),
    ("connect_by_fast_open", "tcp"),
    ("open_multipath", "tcp"),
    ("serve", "tcp"),
    ("send_datagram", "udp"),
    ("connect_unix", "unix"),
]


def test_a_network_that_is_permitted_opens_nothing_but_the_proxy(places):
    answers = all_attacks(ON_THE_NETWORK, places, network=["example.com:443"])
    assert {attack: answer for attack, answer in answers.items() if not is_denied(answer)} == {}


@pytest.mark.slow
def test_the_attacks_succeed_without_confinement(places):
    # the leader of a group cannot leave its session
    attacks = [(name, place) for name, place in ATTACKS if name != "leave_session"]
    answers = all_attacks(attacks, places, mode="Off")
    assert {attack: answer for attack, answer in answers.items() if answer.error or not answer.value > 0} == {}


@pytest.mark.parametrize(("mode", "num_readable"), [("Required", 2), ("Off", 5)])
def test_of_data_a_function_reads_what_its_job_names(mode, num_readable, tmp_path):
    for name in ("mine/index", "mine/words", "other/index"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("data")
    (tmp_path / "mine" / "link").symlink_to("../other/index")
    paths = [
        tmp_path / name for name in ("mine/index", "mine/words", "other/index", "mine/link", "mine/../other/index")
    ]
    target = Target("attacks:read", {}, limits(), readable=(os.path.relpath(tmp_path / "mine"),))

    async def run():
        async with calling(target, confinement=mode) as calls:
            return [await calls.call("s", "read", None, {"path": str(path)}) for path in paths]

    answers = asyncio.run(run())
    assert [answer.value for answer in answers if answer.error is None] == [4] * num_readable
    assert all(is_denied(answer) for answer in answers[num_readable:])


def test_data_that_is_not_there_is_named():
    target = Target("attacks:read", {}, limits(), readable=("/absent/index",))
    with pytest.raises(InvalidJob, match="^target \"read\": readable: there is no '/absent/index' on this machine"):
        Calls({"read": target}, processes=1, confinement="Off", network=())


@pytest.mark.parametrize("mode", ["Required", "Preferred"])
@pytest.mark.parametrize("isolated", [False, True])
def test_honest_code_works(mode, isolated):
    answer = attack("work_as_usual", mode=mode, isolated=isolated)
    assert answer.value == "42\ndone\n", answer.error


def test_a_process_has_its_pipes_and_no_other_descriptor():
    assert attack("num_descriptors").value == 5


@pytest.mark.parametrize("mode", [pytest.param("Off", marks=pytest.mark.slow), "Required"])
def test_a_fork_bomb_is_ended(mode):
    error = attack("bomb_of_processes", mode=mode, processes=20).error
    assert error.cause == "Died" and "more than the 20 that it may have" in error.message


@pytest.mark.parametrize("mode", [pytest.param("Off", marks=pytest.mark.slow), "Required"])
def test_memory_is_summed_over_all_processes(mode):
    # 6 x 40 MB: none of them is above the limit alone
    error = attack("bomb_of_memory", mode=mode, memory_bytes=150 << 20, arguments={"count": 6, "size": 40 << 20}).error
    assert error.cause == "OutOfMemory" and "used more than 157286400 bytes" in error.message


def test_memory_that_processes_share_counts_once():
    answer = attack("shared_memory", memory_bytes=150 << 20, arguments={"count": 6, "size": 40 << 20})
    assert answer.value == 40 << 20, answer.error


def test_what_loses_its_parent_is_killed_with_its_call(capfd):
    error = attack("escape", seconds=1.5, arguments={"folder": "."}).error
    assert error.cause == "TimedOut"
    (pid,) = [int(line.split()[1]) for line in capfd.readouterr().out.splitlines() if line.startswith("escaped")]
    wait_for(lambda: is_gone(pid))


def test_another_user_without_privileges_is_confined_too():
    if os.getuid():
        pytest.skip("the other tests are it")
    script = (
        "import os, sys, tempfile\n"
        "folder = tempfile.mkdtemp()\n"
        "os.chown(folder, 65534, 65534)\n"
        "from rljob_worker.sandbox.confinement.confine import Confinement, confine\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "confine(Confinement('Required'), folder)\n"
        "for path in ('/etc/passwd', '/proc/1/status', '/'):\n"
        "    try: os.listdir(path) if path == '/' else open(path)\n"
        "    except PermissionError: print('denied')\n"
        "open(os.path.join(folder, 'x'), 'w')\n"
        "print('written')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.split() == ["denied", "denied", "denied", "written"], done.stderr


@pytest.mark.parametrize(
    ("abi", "seccomp", "words"),
    [
        (0, True, "there is no Landlock"),
        (5, True, "Landlock has ABI 5, not 6"),
        (6, False, "there is no seccomp filter for"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name_or_warned_of(abi, seccomp, words, monkeypatch, caplog):
    monkeypatch.setattr(confinement, "landlock_abi", lambda: abi)
    monkeypatch.setattr(confinement, "has_seccomp", lambda: seccomp)
    with pytest.raises(
        InvalidJob, match=f"^conversation: confinement: Required cannot be had on this machine: {words}"
    ):
        confinement.check_confinement("conversation", "Required")
    confinement.check_confinement("conversation", "Preferred")
    assert words in caplog.text
    confinement.check_confinement("conversation", "Off")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("connects", [False, True])
def test_the_filter_is_a_program_that_the_kernel_takes(machine, connects):
    code = assemble(machine, connects=connects)
    assert len(code) <= 4096 and code[-1][0] == 0x06
    jumps = {0x15, 0x25, 0x45}
    assert all(at + 1 + max(yes, no) < len(code) for at, (kind, yes, no, _) in enumerate(code) if kind in jumps)
    numbers = [number for name in (*NUMBERS, *ON_X86_64_ONLY) if (number := number_of(name, machine)) is not None]
    assert len(numbers) == len(set(numbers))
