"""How long host 0 of `rljob launch` takes for many hosts to meet, begin and end an attempt, and with how much CPU.

    python benchmarks/rendezvous.py --hosts 16 128 1024

Host 0 is this process. All others are sockets of one more, which answer at once: the figures are of host 0's part.
"""

from __future__ import annotations

import argparse
import os
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass

from rljob_worker.hosts.calling import Connection, call
from rljob_worker.hosts.gang import Attempt, WideGang
from rljob_worker.hosts.meeting import meeting
from rljob_worker.hosts.messages import Begin, Book, Clear, Cleared, Ended, Finish, Hello, Serving
from rljob_worker.hosts.roll import Expected
from rljob_worker.hosts.seat import Seat
from rljob_worker.process.signal_pipe import SignalPipe
from rljob_worker.tests.documents import plan_of

TOKEN = "0123456789abcdef-of-a-benchmark"
PORT = 29_417
WAIT_SECONDS = 300.0


@dataclass(frozen=True)
class Times:
    """Seconds, and of them on a processor."""

    meet: float
    begin: float
    end: float
    cpu: float


def seat_of(host: int, num_hosts: int) -> Seat:
    return Seat(host, num_hosts, "127.0.0.1", PORT)


def hello_of(host: int, num_hosts: int) -> Hello:
    return Hello(host, num_hosts, f"node{host}", "0", "wide", {}, "hash")


def measured(num_hosts: int, tls: bool) -> Times:
    """Host 0's part, from the first caller to the last that has hung up."""
    plan = plan_of("wide", groups=[("train", num_hosts, 8)], data=DATA, dataBuffer={"tls": tls})
    command = [sys.executable, __file__, "--be", str(num_hosts)]
    with meeting(seat_of(0, num_hosts), TOKEN, WAIT_SECONDS, print) as met, subprocess.Popen(command) as others:
        cpu, start = time.process_time(), time.monotonic()
        with SignalPipe(()) as signals:
            met.gather(Expected(num_hosts, "0", "wide", {}, "hash"), signals)
        met_at = time.monotonic()
        gang = WideGang(met, plan, Attempt(1, "never", "", {}), {})
        gang.start()
        while gang.poll() is None and gang.serving_seconds is None:
            time.sleep(0.001)
        begun_at = time.monotonic()
        while gang.poll() is None:
            time.sleep(0.001)
        met.dismiss(0, "done")
        times = Times(met_at - start, begun_at - met_at, time.monotonic() - begun_at, time.process_time() - cpu)
        others.wait()
    return times


DATA = {"train": [{"path": "some/data"}], "batchSize": 8192}


def be_hosts(num_hosts: int) -> None:
    """All hosts, in one thread."""
    read_end, _ = os.pipe()
    with selectors.DefaultSelector() as selector:
        for host in range(num_hosts):
            found = call(seat_of(host, num_hosts), hello_of(host, num_hosts), TOKEN, WAIT_SECONDS, read_end)
            selector.register(found, selectors.EVENT_READ, host)
        left = num_hosts
        while left:
            for key, _ in selector.select():
                connection = key.fileobj
                assert isinstance(connection, Connection)
                if answered(connection, key.data):
                    selector.unregister(connection)
                    connection.close()
                    left -= 1


def answered(connection: Connection, host: int) -> bool:
    """Whether the host has been dismissed."""
    for word in connection.words():
        if isinstance(word, Begin):
            connection.send(Serving(word.attempt, f"10.0.{host // 250}.{host % 250}:41234"))
        elif isinstance(word, Book):
            connection.send(Ended(word.attempt, 0))
        elif isinstance(word, Clear):
            connection.send(Cleared(word.attempt))
        elif isinstance(word, Finish):
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 128, 1024])
    parser.add_argument("--be", type=int, help="be so many hosts")
    given = parser.parse_args()
    if given.be:
        be_hosts(given.be)
        return
    print("| hosts | TLS | meet | begin: addresses, book | end | CPU of host 0 |\n|---|---|---|---|---|---|")
    for num_hosts in given.hosts:
        for tls in (False, True):
            found = measured(num_hosts, tls)
            cells = (f"{each:.2f} s" for each in (found.meet, found.begin, found.end, found.cpu))
            print(f"| {num_hosts} | {'yes' if tls else 'no'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
