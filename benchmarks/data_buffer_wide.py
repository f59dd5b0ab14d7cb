"""Rows from many hosts to one: does everything arrive, how soon, and what does waiting cost.

    python benchmarks/data_buffer_wide.py [--cases 40 100 300 30% 60% 90%] [--waiting 10] [--deadline 120]

40, 100 and 300: as many hosts of one worker to one rank, whose share takes 40 % of the arena. 30%, 60%, 90%: 16 hosts
of 8 workers to one host of 8 ranks, `balance: Tokens`; the shares together take so much of the consumer's arena. The
consumer's data buffer is a process of its own; those of the producers share processes, 100 hosts in each. `waiting` is
the CPU of the consumer's data buffer while all its ranks wait and nothing has been put; `put` lasts until the last part
is sealed, `get` from then until the last rank has its rows; `CPU` is what the consumer's data buffer spent on both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from process_usage import cpu_seconds

from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.tests.gang import Gang, serving_some, start, two_stages
from rljob_worker.errors import RLJobError

HOSTS_PER_PROCESS = 100
PUTTERS = 16
ROWS_PER_WORKER = 8
ENVIRONMENT = {
    "RLJOB_BUFFER_FAN_OUT": "32",
    "RLJOB_BUFFER_RETRY_SECONDS": "60",
    "RLJOB_BUFFER_START_SECONDS": "120",
}


@dataclass(frozen=True)
class WideCase:
    """Hosts and workers of a host at both ends, the arena, and how much of it the shares of one host take."""

    producers: tuple[int, int]
    consumers: tuple[int, int]
    memory: int
    fill: float

    @property
    def row_bytes(self) -> int:
        num_rows = self.producers[0] * self.producers[1] * ROWS_PER_WORKER
        return int(self.memory * self.fill / num_rows)

    def plan(self, deadline_seconds: float) -> Plan:
        return two_stages(
            self.producers,
            self.consumers,
            balance="None" if self.consumers == (1, 1) else "Tokens",
            columns=("values",),
            batch_size=self.producers[0] * self.producers[1] * ROWS_PER_WORKER,
            group_size=1,
            memory=f"{self.memory >> 20}Mi",
            deadline_seconds=deadline_seconds,
        )

    def part(self, rank: int) -> Batch:
        """Lengths between nine and eleven tenths of the mean, seeded."""
        mean = self.row_bytes // 4
        lengths = np.random.default_rng(rank).integers(9 * mean // 10, 11 * mean // 10, ROWS_PER_WORKER)
        ids = rank * ROWS_PER_WORKER + np.arange(ROWS_PER_WORKER)
        values = np.full(int(lengths.sum()), rank, np.float32)
        return Batch.build(ids, ids, {"values": Column.from_lengths(values, lengths)}, lengths)


CASES = {
    "40": WideCase((40, 1), (1, 1), 16 << 20, 0.4),
    "100": WideCase((100, 1), (1, 1), 8 << 20, 0.4),
    "300": WideCase((300, 1), (1, 1), 4 << 20, 0.4),
    "30%": WideCase((16, 8), (1, 8), 64 << 20, 0.3),
    "60%": WideCase((16, 8), (1, 8), 64 << 20, 0.6),
    "90%": WideCase((16, 8), (1, 8), 64 << 20, 0.9),
}


def produce(gang: Gang, case: WideCase, hosts: range, pipe: Connection) -> None:
    """A process that serves some of the producing hosts, with their workers."""
    names = [("rollout", host) for host in hosts]
    with serving_some(gang, names, **ENVIRONMENT), ThreadPoolExecutor(PUTTERS) as pool:
        pipe.send(gang.ready)
        pipe.recv()
        ranks = range(hosts.start * case.producers[1], hosts.stop * case.producers[1])
        clients = {rank: gang.client("rollout", rank) for rank in ranks}
        pipe.send(len(clients))
        pipe.recv()
        try:
            list(pool.map(lambda rank: clients[rank].put(1, "a->b", case.part(rank)), ranks))
        except RLJobError as error:
            print(f"put: {error}", flush=True)
        pipe.send("put")
        pipe.recv()


def measure(case: WideCase, waiting_seconds: float, deadline_seconds: float) -> str:
    """One line of the table."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        gang = Gang(case.plan(deadline_seconds), directory)
        gang.write_files()
        buffer = gang.processes["train-0"] = start(gang, "train", 0, **ENVIRONMENT)
        stack.callback(buffer.kill)
        assert buffer.stdout is not None
        gang.ready["train-0"] = json.loads(buffer.stdout.readline())
        pipes = [stack.enter_context(contextlib.closing(pipe)) for pipe in start_producers(gang, case, stack)]
        gang.write_book()
        notify(pipes)
        ranks = range(case.consumers[1])
        clients = [gang.client("train", rank) for rank in ranks]
        pool = stack.enter_context(ThreadPoolExecutor(len(clients)))
        coming = [pool.submit(client.get, 1, "a->b") for client in clients]
        time.sleep(3.0)  # connections come about
        before = cpu_seconds(buffer.pid)
        time.sleep(waiting_seconds)
        waiting = (cpu_seconds(buffer.pid) - before) / waiting_seconds
        before, started = cpu_seconds(buffer.pid), time.perf_counter()
        notify(pipes)
        put = time.perf_counter()
        try:
            batches = [item.result() for item in coming]
        except RLJobError as error:
            return f"waiting {waiting:.1%} of a core; after {time.perf_counter() - started:.1f} s: {str(error)[:300]}"
        got = time.perf_counter()
        assert sum(map(len, batches)) == case.plan(1.0).spec.data.batch_size
        num_bytes = sum(batch.nbytes for batch in batches)
        return (
            f"{num_bytes / 1e6:>8.1f} MB, waiting {waiting:>6.1%} of a core, put {put - started:>6.2f} s, "
            f"get {got - put:>6.2f} s, CPU {cpu_seconds(buffer.pid) - before:>5.2f} s"
        )


def start_producers(gang: Gang, case: WideCase, stack: contextlib.ExitStack) -> list[Connection]:
    spawn = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    for first in range(0, case.producers[0], HOSTS_PER_PROCESS):
        ours, theirs = spawn.Pipe()
        hosts = range(first, min(first + HOSTS_PER_PROCESS, case.producers[0]))
        process: BaseProcess = spawn.Process(
            target=produce, args=(Gang(gang.plan, gang.directory), case, hosts, theirs)
        )
        process.start()
        stack.callback(process.kill)
        pipes.append(ours)
    for pipe in pipes:
        gang.ready.update(pipe.recv())
    return pipes


def notify(pipes: list[Connection]) -> None:
    """Go on, and come back."""
    for pipe in pipes:
        pipe.send(None)
    for pipe in pipes:
        pipe.recv()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--waiting", type=float, default=10.0)
    parser.add_argument("--deadline", type=float, default=120.0)
    options = parser.parse_args()
    for name in options.cases:
        load = os.getloadavg()[0]
        line = measure(CASES[name], options.waiting, options.deadline)
        print(f"{name:>5}: {line} (load {load:.0f})", flush=True)


if __name__ == "__main__":
    main()
