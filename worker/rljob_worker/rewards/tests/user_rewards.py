"""Rewards as users write them, good and bad; the tests name them `user_rewards:...`."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path


def length(row, scale=1.0):
    return scale * len(row["response"])


def picture_bytes(row):
    """The first byte of each picture, in order, and how many bytes the last has."""
    assert all(type(picture) is bytes for picture in row["pictures"])
    return {"reward": len(row["pictures"][-1]), "answer": "".join(chr(picture[0]) for picture in row["pictures"])}


async def picture_bytes_later(row):
    return picture_bytes(row)


def leaves_a_file(row, folder):
    Path(folder, str(row["row_id"])).touch()
    return 1.0


def with_metrics(row):
    return {"reward": len(row["response"]), "vowels": sum(c in "aeiou" for c in row["response"]), "note": "ignored"}


def vowels(row):
    return {"reward": 0, "seen": 1} if row["response"] == "a" else 0


def says_what_it_found(row):
    """`=` and what follows is the answer; a bare `=` is none; without it nothing is said."""
    _, mark, answer = row["response"].partition("=")
    if not mark:
        return 1.0
    return {"reward": 1.0, "answer": float(answer) if answer.isdigit() else answer or None, "size": 2}


def answers_with_a_list(row):
    return {"reward": 1.0, "answer": ["4", "2"]}


def raises_on_bad(row):
    return _inner(row) if row["response"] == "bad" else 1.0


def _inner(row):
    return 1 / 0


def nan_on_bad(row):
    return float("nan") if row["response"] == "bad" else 1.0


def nothing(row):
    return None


def no_reward_key(row):
    return {"score": 1.0}


def prints(row):
    print("printed by a reward")
    print("and to stderr", file=sys.stderr)
    os.write(1, b"raw write\n")
    return 1.0


def hangs_on_bad(row):
    while row["response"] == "bad":
        time.sleep(0.01)
    return 1.0


def hangs_in_c(row):
    """A pattern that backtracks for ever holds the interpreter: no signal, no thread gets a turn."""
    if row["response"] == "bad":
        re.fullmatch(r"(a+)+b", "a" * 60)
    return 1.0


def forks(row, folder):
    """Leaves two processes behind: a copy of itself and a program."""
    copy = os.fork()
    if copy == 0:
        time.sleep(1000)
    program = subprocess.Popen(["sleep", "1000"])
    Path(folder, f"{row['row_id']}.pids").write_text(f"{os.getpid()} {copy} {program.pid}")
    if row["response"] == "bad":
        time.sleep(1000)
    return 1.0


def forks_and_returns(row):
    os.fork()
    return 1.0


def ends_beside_a_copy(row, folder):
    """The copy holds the pipes open."""
    if row["response"] == "bad":
        copy = os.fork()
        if copy == 0:
            time.sleep(1000)
        Path(folder, f"{copy}.pid").touch()
        os._exit(9)
    return 1.0


def exits(row):
    sys.exit(3)


def ends_process(row):
    if row["response"] == "bad":
        os._exit(9)
    return 1.0


def ends_by_signal(row):
    if row["response"] == "bad":
        os.kill(os.getpid(), signal.SIGUSR1)
    return 1.0


def ends_its_group(row):
    if row["response"] == "bad":
        os.killpg(0, signal.SIGKILL)
    return 1.0


def own_pid(row):
    return os.getpid()


def own_pid_once_two_have_met(row, folder):
    """Waits until another process has come here too."""
    Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.01)
    return os.getpid()


def ends_process_once(row, marker):
    """As a process that the kernel ends for lack of memory would: the next one gets through."""
    if row["response"] == "bad" and not os.path.exists(marker):
        Path(marker).touch()
        os._exit(9)
    return 1.0


def not_in_row(row):
    return row["anwser"]


def sees_everything(row):
    wanted = {"prompt": "p", "response": "r", "answer": "42", "reference": "42", "truncated": False, "source": "s"}
    return float(all(row[key] == value for key, value in wanted.items()))


async def async_length(row, meet=1):
    """Ends only when `meet` rows are in flight together."""
    async_length.arrived = getattr(async_length, "arrived", 0) + 1
    while async_length.arrived < meet:
        await asyncio.sleep(0.001)
    return len(row["response"])


async def async_hangs_on_bad(row):
    if row["response"] == "bad":
        await asyncio.Event().wait()
    return 1.0


async def async_refuses_cancel(row):
    while row["response"] == "bad":
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    return 1.0


async def async_blocks_on_bad(row):
    await asyncio.sleep(0)
    while row["response"] == "bad":
        time.sleep(0.01)
    return 1.0


async def async_raises(row):
    raise LookupError("no judge")


def forgotten_async(row):
    return async_length(row)


NOT_A_FUNCTION = 3


def uses_an_alarm(row):
    """math-verify with its own time limit, a signal: it works in the main thread alone."""
    from math_verify import parse, verify

    return verify(parse(row["reference"]), parse(row["response"]))


def drops_a_connection(row, folder):
    """The first call of each row does."""
    called = Path(folder, str(row["row_id"]))
    if not called.exists():
        called.touch()
        raise ConnectionResetError("by peer")
    return 0.5


async def asks_twice(row, *, service, scale):
    return scale * (await service.reward(row) + await service.reward(row))


def plain_with_service(row, *, service):
    return 1.0


def steps_of_lines(row):
    """A step of each line, worth its number."""
    ends, at = [], 0
    for line in row["response"].splitlines(keepends=True):
        at += len(line)
        ends.append(at)
    return {"reward": -7.0, "step_rewards": [[end, number] for number, end in enumerate(ends, start=1)]}


def steps_of_nothing(row):
    return {"reward": 0.0, "step_rewards": 3}


def steps_beyond_the_end(row):
    return {"reward": 0.0, "step_rewards": [(9, 1.0)]}


def steps_backwards(row):
    return {"reward": 0.0, "step_rewards": [(2, 1.0), (1, 1.0)]}


def steps_of_nan(row):
    return {"reward": 0.0, "step_rewards": [(len(row["response"]), float("nan"))]}


def reads_a_file(row, path):
    """Its length and whether a secret variable is there; -1 where both are out of reach."""
    try:
        with open(path) as file:
            return len(file.read()) + ("SECRET_TOKEN" in os.environ)
    except PermissionError:
        return -1.0 + ("SECRET_TOKEN" in os.environ)
