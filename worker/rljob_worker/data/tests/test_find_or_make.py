"""Looked for first, made by one, never waited for in vain: real locks, and a clock that the tests turn."""

import errno
import fcntl
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.data import find_or_make as module
from rljob_worker.data.find_or_make import find_or_make
from rljob_worker.errors import StorageError
from rljob_worker.tests.waiting import wait_for

EXCLUSIVE, TRY = fcntl.LOCK_EX, fcntl.LOCK_EX | fcntl.LOCK_NB


class Clock:
    """Stands in for `time`: sleeping takes no time and calls `meanwhile`."""

    def __init__(self):
        self.now = 5.0
        self.meanwhile = lambda: None

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.meanwhile()


class Maker:
    """Counts what it makes; takes `seconds` of the clock between two signs of life."""

    def __init__(self, answer=b"answer"):
        self.answer, self.made = answer, 0

    def __call__(self, beat):
        self.made += 1
        yield self.answer[:3]
        yield self.answer[3:]


def unwanted(*_):
    raise AssertionError("nobody should have asked for this")


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def place(tmp_path, monkeypatch):
    """On shared storage; the host's own disk is another folder."""
    (tmp_path / "host").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "host"))
    return tmp_path / "shared" / "cache" / "it"


@pytest.fixture
def held(place):
    """The lock, held by somebody else."""
    place.parent.mkdir(parents=True)
    lock = Path(f"{place}.lock")
    with lock.open("ab") as file:
        fcntl.flock(file, EXCLUSIVE)
        yield lock


def keep(place, answer=b"kept"):
    """What another host does when it has made the answer."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(hashlib.sha256(answer).digest() + answer)


def files_beside(place):
    return sorted(path.name for path in place.parent.iterdir())


def test_what_is_there_is_found_without_a_lock(place, monkeypatch):
    keep(place)
    monkeypatch.setattr(fcntl, "flock", unwanted)
    assert find_or_make(place, unwanted) == b"kept"
    assert files_beside(place) == ["it"]


def test_what_is_absent_is_made_once_and_found_from_then_on(place, clock):
    maker = Maker()
    assert [find_or_make(place, maker) for _ in range(3)] == [b"answer"] * 3
    assert maker.made == 1
    assert files_beside(place) == ["it", "it.lock"]
    assert clock.now == 5.0


@pytest.mark.parametrize("body", [b"", b"a", bytes(100_000)])
def test_any_bytes_can_be_kept(place, body):
    assert find_or_make(place, Maker(body)) == body == find_or_make(place, unwanted)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: data + b"x",
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
)
def test_a_damaged_answer_is_made_anew(place, damage):
    find_or_make(place, Maker(b"right"))
    place.write_bytes(damage(place.read_bytes()))
    maker = Maker(b"right")
    assert find_or_make(place, maker) == b"right" == find_or_make(place, unwanted)
    assert maker.made == 1


@pytest.mark.parametrize("has_host_lock", [True, False])
def test_of_many_that_race_one_makes(place, monkeypatch, has_host_lock):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    if not has_host_lock:
        monkeypatch.setattr(tempfile, "tempdir", str(place / "absent"))
    maker, start = Maker(), threading.Barrier(8)

    def rank(_):
        start.wait()
        return find_or_make(place, maker)

    with ThreadPoolExecutor(8) as ranks:
        assert list(ranks.map(rank, range(8))) == [b"answer"] * 8
    assert maker.made == 1
    assert files_beside(place) == ["it", "it.lock"]


def test_one_process_of_a_host_asks_the_shared_storage_for_its_lock(place, monkeypatch):
    asked, flock, begun, end = [], fcntl.flock, threading.Event(), threading.Event()

    def recording(file, operation):
        asked.append(operation)
        flock(file, operation)

    def make(beat):
        begun.set()
        assert end.wait(TEST_TIMEOUT_SECONDS)
        return [b"answer"]

    monkeypatch.setattr(fcntl, "flock", recording)
    with ThreadPoolExecutor(2) as ranks:
        first = ranks.submit(find_or_make, place, make)
        assert begun.wait(TEST_TIMEOUT_SECONDS)
        second = ranks.submit(find_or_make, place, unwanted)
        wait_for(lambda: len(asked) == 3)
        assert asked == [EXCLUSIVE, TRY, EXCLUSIVE], "the second waits on its own host"
        end.set()
        assert first.result() == second.result() == b"answer"


def test_locks_of_a_host_are_nobody_elses_to_hold(place):
    find_or_make(place, Maker())
    (folder,) = Path(tempfile.gettempdir()).iterdir()
    assert folder.name == f"rljob-{os.getuid()}" and folder.stat().st_mode & 0o777 == 0o700


def test_different_answers_do_not_wait_for_each_other_on_a_host(place):
    def make(beat):
        return [find_or_make(place.with_name("other"), Maker(b"other"))]

    assert find_or_make(place, make) == b"other"


def test_a_dead_holder_holds_nothing(place, clock):
    place.parent.mkdir(parents=True)
    script = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX);"
        "print('held', flush=True); time.sleep(1000)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, f"{place}.lock"], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    maker = Maker()
    assert find_or_make(place, maker) == b"answer"
    assert maker.made == 1 and clock.now == 5.0


def test_the_others_look_until_it_is_there(place, held, clock):
    clock.meanwhile = lambda: clock.now == 25.0 and keep(place)
    assert find_or_make(place, unwanted) == b"kept"
    assert clock.now == 25.0, "a look a second, and none after it was there"


@pytest.mark.parametrize(("chance", "made_at"), [(0.0, 186.0), (1.0, 366.0)])
def test_a_lock_that_is_held_in_silence_is_left_alone(place, held, clock, monkeypatch, chance, made_at):
    # first look at 5 s; more than 180 s, or for the most patient host more than 360 s, later nothing has changed
    monkeypatch.setattr(random, "uniform", lambda low, high: low + chance * (high - low))
    before = held.stat().st_mtime_ns
    os.utime(held, ns=(before - 10**9, before - 10**9))
    maker = Maker()
    assert find_or_make(place, maker) == b"answer"
    assert maker.made == 1 and clock.now == made_at
    assert held.stat().st_mtime_ns > before - 10**9, "the other hosts see that somebody is at it"
    assert find_or_make(place, unwanted) == b"answer"


@pytest.mark.parametrize("skew_seconds", [-3600, 3600])
def test_a_slow_maker_is_waited_for_whatever_its_clock_says(place, held, clock, skew_seconds):
    def work():
        if clock.now % 100 == 0:
            written = held.stat().st_mtime + skew_seconds
            os.utime(held, (written, written))
        if clock.now == 5000:
            keep(place)

    clock.meanwhile = work
    assert find_or_make(place, unwanted) == b"kept"


def test_a_change_starts_the_wait_again(place, held, clock, monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    clock.meanwhile = lambda: clock.now == 100.0 and os.utime(held, (1, 1))
    assert find_or_make(place, Maker()) == b"answer"
    assert clock.now == 281.0


@pytest.mark.parametrize("name", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_without_locks_every_host_makes_its_own(place, clock, monkeypatch, name):
    def flock(file, operation):
        raise OSError(getattr(errno, name), name)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert find_or_make(place, Maker()) == b"answer"
    assert clock.now == 5.0


def test_a_lock_that_fails_is_somebody_elses(place, clock, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert find_or_make(place, Maker()) == b"answer"
    assert clock.now > 185.0


def test_a_maker_shows_life_every_ten_seconds(place, clock, monkeypatch):
    touched = []
    monkeypatch.setattr(os, "utime", lambda path: touched.append((path.name, clock.now)))

    def make(beat):
        for _ in range(25):
            clock.now += 1.0
            beat()
        return [b"answer"]

    assert find_or_make(place, make) == b"answer"
    assert touched == [("it.lock", 5.0), ("it.lock", 15.0), ("it.lock", 25.0)]


def test_a_sign_of_life_that_fails_harms_nothing(place, monkeypatch):
    def utime(path):
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "utime", utime)
    assert find_or_make(place, Maker()) == b"answer"


def test_a_file_that_was_replaced_under_the_reader_is_not_there(place, monkeypatch):
    keep(place, b"old")
    opened, failures = Path.open, [OSError(errno.ESTALE, "stale file handle")]

    def open_once_stale(path, mode):
        if mode == "rb" and failures:
            raise failures.pop()
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", open_once_stale)
    assert find_or_make(place, unwanted) == b"old"


def test_storage_that_cannot_be_read(place, monkeypatch):
    keep(place)

    def broken(path, mode):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(Path, "open", broken)
    with pytest.raises(
        StorageError, match=r"^the data cache .*/shared/cache cannot be read or written: .*input/output"
    ):
        find_or_make(place, unwanted)


def test_storage_where_nothing_can_be_made(place):
    place.parent.parent.mkdir()
    place.parent.touch()
    with pytest.raises(StorageError, match="the data cache"):
        find_or_make(place, unwanted)


def test_a_lock_that_cannot_be_written(place):
    Path(f"{place}.lock").mkdir(parents=True)
    with pytest.raises(StorageError, match="the data cache"):
        find_or_make(place, unwanted)


def test_a_full_disk_leaves_nothing_behind(place, monkeypatch):
    synced = []

    def replace(source, target):
        assert synced == [32 + len(b"answer")], "all of it is on the disk before it has the name"
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(StorageError, match="no space left"):
        find_or_make(place, Maker())
    assert files_beside(place) == ["it.lock"]


def test_what_another_made_in_the_meantime_is_not_replaced_under_its_readers(place):
    def make(beat):
        yield b"ans"
        keep(place, b"answer")
        before.append(place.stat().st_ino)
        yield b"wer"

    before = []
    assert find_or_make(place, make) == b"answer"
    assert before == [place.stat().st_ino]
    assert files_beside(place) == ["it", "it.lock"]


@pytest.mark.parametrize("num_pieces", [0, 1])
@pytest.mark.parametrize("error", [ValueError("bad row"), OSError("the data itself")])
def test_a_maker_that_fails_is_heard_and_holds_nothing(place, clock, error, num_pieces):
    def make(beat):
        yield from [b"a piece"] * num_pieces
        raise error

    with pytest.raises(type(error)) as caught:
        find_or_make(place, make)
    assert caught.value is error
    assert find_or_make(place, Maker()) == b"answer"
    assert clock.now == 5.0
