"""Functions and environments as users write them, well and badly. Imported by the processes of tests only."""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

NOT_CALLABLE = 3
CALLS = []


def add(a, b=1):
    return a + b


def scaled(x, scale):
    return x * scale


async def add_later(a, b=1, seconds=0.0):
    await asyncio.sleep(seconds)
    return a + b


def key_of(call_key):
    return call_key


def own_pid():
    return os.getpid()


def count_of_process():
    CALLS.append(1)
    return len(CALLS)


def variables():
    return dict(os.environ)


def returns(what):
    values = {
        "bytes": b"abc",
        "nan": {"score": [1.0, float("nan")]},
        "surrogate": "a\udc80",
        "object": object(),
        "large": "x" * 10_000_000,
        "circle": [],
        "tuple": (1, "a"),
    }
    values["circle"].append(values["circle"])
    return values[what]


def fails(what):
    if what == "raise":
        raise ValueError("no such page")
    if what == "exit":
        sys.exit(3)
    if what == "die":
        os._exit(9)
    if what == "signal":
        os.kill(os.getpid(), signal.SIGUSR1)
    if what == "hang":
        time.sleep(1000)
    if what == "hang in C":
        ctypes.PyDLL(None).usleep(1_000_000_000)
    if what == "close":
        os.closerange(0, 4096)
        time.sleep(1000)
    if what == "fork and return":
        os.fork()
    return what


async def fails_in_loop(what, meet=None):
    if meet is not None:
        (Path(meet) / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        while len(os.listdir(meet)) < 3:
            await asyncio.sleep(0.01)
    if what == "refuse":
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
    return fails(what)


def prints(count):
    print("x" * count)
    return count


def writes_into_pipe(text):
    os.write(4, text.encode() + b"\n")
    return "mine"


def forks(folder):
    for _ in range(2):
        if os.fork() == 0:
            with open(os.path.join(folder, "pids"), "a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(1000)
    time.sleep(1000)


def file_in_folder(file):
    is_new = not Path(file).exists()
    Path(file).write_text("x")
    return [is_new, os.getcwd()]


class Counter:
    """An environment with state."""

    def __init__(self, start=0):
        self.count = start

    def step(self, by=1):
        self.count += by
        return self.count

    def where(self):
        return os.getpid()

    def fail(self, what):
        return fails(what)

    def _secret(self):
        return 1


class Closed(Counter):
    def close(self):
        with open(os.environ["CLOSED_FILE"], "a") as file:
            file.write(json.dumps(self.count) + "\n")


class Later(Counter):
    """A method of it is asynchronous."""

    async def step_later(self, by=1, seconds=0.0):
        await asyncio.sleep(seconds)
        return self.step(by)

    async def fail_later(self, what):
        return fails(what)


class Broken:
    def __init__(self):
        raise OSError("no display")

    def step(self):
        return 1


def reads(path):
    return Path(path).read_text()


class Closing:
    def note(self, path=None):
        self.path = path

    def hang(self):
        time.sleep(1000)

    def close(self):
        if self.path is None:
            time.sleep(1000)
        Path(self.path).write_text("closed")
