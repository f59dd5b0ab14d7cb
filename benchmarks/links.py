"""What it costs data buffers to speak with each other: `python benchmarks/links.py`.

One data buffer speaks over loopback with 33 others in a second process. Prints the processor time of watching them
while nobody says anything, of messages in full envelopes and of envelopes with one message each at both ends, the time
from `send` to `hears`, and, once the second process is stopped (SIGSTOP), how soon its data buffers are lost and how
long messages to another one took meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljob_worker.databuffer.links.tests.pair import Speaker, speaking, write_book
from rljob_worker.databuffer.protocol.peer_side import Down, PeerMessage, RowsTaken
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.tests.waiting import wait_for

HERE = Host("a", 0)
STAMP = struct.Struct("<d")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=int, default=33)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.peers)
        return
    book = Path(tempfile.mkdtemp()) / "book.json"
    with (
        others(book, options.peers) as there,
        speaking(HERE, book, retry_seconds=5.0) as here,
        speaking(Host("b", options.peers), book) as healthy,
    ):
        write_book(book, {"a": [here.address], "b": [*there.addresses, healthy.address]})
        idle(here, there, options.seconds)
        messages(here, there, 50_000)
        envelopes(here, there, 2000)
        latency(here, there, 2000)
        stopped(here, there, healthy)


class Others:
    """The process with the other data buffers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.addresses: list[str] = json.loads(process.stdout.readline())
        self.hosts = [Host("b", index) for index in range(len(self.addresses))]

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)


@contextlib.contextmanager
def others(book: Path, num_peers: int) -> Iterator[Others]:
    command = [sys.executable, __file__, "--serve", str(book), "--peers", str(num_peers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Others(process)
        finally:
            process.kill()


def serve(book: Path, num_peers: int) -> None:
    """The other data buffers: answers lines of standard input until it ends."""
    late: list[float] = []

    def hears(sender: Host, message: PeerMessage) -> None:
        if isinstance(message, Down):
            late.append(time.perf_counter() - STAMP.unpack(message.payload)[0])

    with contextlib.ExitStack() as stack:
        speakers = [stack.enter_context(speaking(Host("b", index), book)) for index in range(num_peers)]
        print(json.dumps([speaker.address for speaker in speakers]), flush=True)
        for line in sys.stdin:
            if line == "watch\n":
                for speaker in speakers:
                    speaker.hears = hears
                    speaker.links.watch([HERE])
            print(json.dumps({"cpu": time.process_time(), "late": late}), flush=True)
        os._exit(0)


def idle(here: Speaker, there: Others, seconds: float) -> None:
    there.ask("watch")
    here.links.watch(there.hosts)
    wait_for(lambda: here.links.drained)
    time.sleep(3.0)
    begin, cpu = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (time.perf_counter() - begin)
    print(f"{len(there.hosts)} watched peers that watch back: {share:.2%} of a core")


def messages(here: Speaker, there: Others, count: int) -> None:
    cpu, theirs, begin = time.process_time(), there.ask("figures")["cpu"], time.perf_counter()
    for number in range(count):
        here.links.send(there.hosts[0], RowsTaken("rollout->train", number, (1, 2, 3)))
    sent = time.perf_counter() - begin
    assert here.links.flush(60.0)
    row("messages to one peer", count, cpu, theirs, there, begin)
    print(f"    send() takes {sent / count * 1e6:.1f} us")


def envelopes(here: Speaker, there: Others, count: int) -> None:
    cpu, theirs, begin = time.process_time(), there.ask("figures")["cpu"], time.perf_counter()
    for number in range(count):
        here.links.send(there.hosts[number % len(there.hosts)], RowsTaken("rollout->train", number, (1, 2, 3)))
        assert here.links.flush(60.0)
    row("envelopes of one message, one after the other", count, cpu, theirs, there, begin)


def row(what: str, count: int, cpu: float, theirs: float, there: Others, begin: float) -> None:
    seconds = time.perf_counter() - begin
    ours, theirs = time.process_time() - cpu, there.ask("figures")["cpu"] - theirs
    each = [f"{value / count * 1e6:.1f} us" for value in (seconds, ours, theirs)]
    print(f"{count} {what}: {each[0]} each; processor here {each[1]}, there {each[2]}")


def latency(here: Speaker, there: Others, count: int) -> None:
    for number in range(count):
        here.links.send(there.hosts[0], Down("verdict", number, STAMP.pack(time.perf_counter())))
        assert here.links.flush(60.0)
    late = sorted(there.ask("figures")["late"])
    print(f"send() to hears(): median {late[count // 2] * 1e6:.0f} us, 99 % {late[count * 99 // 100] * 1e6:.0f} us")


def stopped(here: Speaker, there: Others, healthy: Speaker) -> None:
    here.links.watch([healthy.host])
    there.stop()
    begin, first, slowest = time.perf_counter(), 0.0, 0.0
    while len(here.lost) < len(there.hosts):
        first = first or (time.perf_counter() - begin if here.lost else 0.0)
        sent = time.perf_counter()
        here.links.send(healthy.host, RowsTaken("rollout->train", 0, ()))
        assert here.links.flush(60.0)
        slowest = max(slowest, time.perf_counter() - sent)
        time.sleep(0.05)
    print(f"stopped peers: the first is lost after {first:.1f} s, all after {time.perf_counter() - begin:.1f} s")
    print(f"    slowest message to another peer meanwhile: {slowest * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
