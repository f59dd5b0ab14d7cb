"""Rows from two producers to two consumers, put + repartition + get, between processes on one machine.

    python benchmarks/data_buffer.py [--iterations 10] [--sizes 1 18 288] [--tls] [--spill DIRECTORY]

Nine ragged float32 columns, row lengths between half and one and a half times the mean. Every worker and every data
buffer is a process. `mapped` and `one host` share a data buffer; `two hosts` cross a TCP socket, and --tls adds the
same with dataBuffer.tls, --spill both with all rows in spill files in a directory, which are left there: processes are
killed here. Seconds are medians from the start of all puts to the end of the slowest, then the same for the gets;
`read` sums every value once more, as an engine's first pass would. GB/s counts the batch once over put + get. The
ceilings move the same bytes without any of our code: one copy; a copy into shared memory and one out of it; the same
with a TCP socket between them.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.tests.gang import Gang, as_processes, group, plan_of, stage

NUM_COLUMNS = 9
COLUMNS = [f"column_{i}" for i in range(NUM_COLUMNS)]
WARM_UP = 3
SHAPES = {0: (16, 16), 1: (128, 228), 18: (256, 2048), 288: (1024, 8192)}
"""Megabytes -> rows, mean length."""


@dataclass(frozen=True)
class Case:
    """Where producers and consumers are, and whether rows change ranks."""

    name: str
    hosts: int
    balance: str
    tls: bool = False
    spill: str = ""
    """A directory for all rows; empty: they lie in memory."""


CASES = (Case("mapped", 1, "None"), Case("one host", 1, "Tokens"), Case("two hosts", 2, "Tokens"))
ENCRYPTED = Case("two hosts, TLS", 2, "Tokens", tls=True)


def plan_for(case: Case, num_rows: int, num_bytes: int) -> Plan:
    balance, options = case.balance, {"batch_size": num_rows, "group_size": 1, "deadline_seconds": 120.0}
    room = f"{max(16, 3 * num_bytes >> 20)}Mi"
    options |= {"memory": room, "tls": case.tls}
    if case.spill:
        options |= {"memory": "4Ki", "spill": {"limit": room, "directory": case.spill}}
    pair, edges = Mesh(dp=2), {"a->b": COLUMNS}
    if case.hosts == 1:
        stages = [stage("a", "train", pair), stage("b", "train", pair, balance)]
        return plan_of([group("train", 1, 2, ["a", "b"])], stages, edges, **options)
    stages = [stage("a", "rollout", pair), stage("b", "train", pair, balance)]
    groups = [group("rollout", 1, 2, ["a"]), group("train", 1, 2, ["b"])]
    return plan_of(groups, stages, edges, **options)


def make_rows(step: int, index: int, num_rows: int, mean: int) -> Batch:
    """Half of the batch, seeded."""
    generator = np.random.default_rng(index)
    ids = np.arange(num_rows // 2) + (step - 1) * num_rows + index * (num_rows // 2)
    lengths = generator.integers(mean // 2, mean + mean // 2, num_rows // 2)
    values = generator.random(int(lengths.sum()), np.float32)
    columns = {name: Column.from_lengths(values.copy(), lengths) for name in COLUMNS}
    return Batch.build(ids, ids, columns, lengths)


def work(gang: Gang, role: str, name: str, rank: int, shape: tuple[int, int], commands: Connection) -> None:
    """One worker process: does what it is told, answers with its bytes."""
    client = gang.client(name, rank)
    template = make_rows(1, rank, *shape) if role == "producer" else None
    held: Batch | None = None
    while (command := commands.recv())[0] != "end":
        action, step = command
        answer = 0
        if action == "put" and template is not None:
            ids = template.row_ids + (step - 1) * shape[0]
            client.put(step, "a->b", Batch(ids, ids, template.num_tokens, template.columns))
            answer = template.nbytes
        elif action == "get":
            held = client.get(step, "a->b")
        elif action == "read" and held is not None:
            answer = int(sum(float(held[column].values.sum()) > 0 for column in COLUMNS))
        elif action == "release" and held is not None:
            client.release(held)
        commands.send(answer)


def measure(case: Case, shape: tuple[int, int], iterations: int) -> dict[str, float]:
    """Median seconds of put, get and read; bytes of the batch."""
    rows, mean = shape
    plan = plan_for(case, rows, rows * mean * 4 * NUM_COLUMNS)
    seconds: dict[str, list[float]] = {"put": [], "get": [], "read": []}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, as_processes(plan, Path(directory)) as gang:
        workers = start_workers(gang, case, shape)
        for step in range(1, WARM_UP + iterations + 1):
            num_bytes = 0
            for action, who in (
                ("put", "producer"),
                ("get", "consumer"),
                ("read", "consumer"),
                ("release", "consumer"),
            ):
                start = time.perf_counter()
                answers = tell([pipe for role, pipe, _ in workers if role == who], (action, step))
                if action in seconds and step > WARM_UP:
                    seconds[action].append(time.perf_counter() - start)
                num_bytes += sum(answers) if action == "put" else 0
        for _, pipe, process in workers:
            pipe.send(("end", 0))
            process.join()
        memory = max(private_bytes(process.pid) for process in gang.processes.values())
    medians = {action: statistics.median(values) for action, values in seconds.items()}
    return {**medians, "bytes": float(num_bytes), "private": float(memory)}


def start_workers(
    gang: Gang, case: Case, shape: tuple[int, int]
) -> list[tuple[str, Connection, multiprocessing.process.BaseProcess]]:
    spawn = multiprocessing.get_context("spawn")
    workers: list[tuple[str, Connection, multiprocessing.process.BaseProcess]] = []
    for role, name in (("producer", "train" if case.hosts == 1 else "rollout"), ("consumer", "train")):
        for rank in range(2):
            ours, theirs = spawn.Pipe()
            told = Gang(gang.plan, gang.directory)
            process = spawn.Process(target=work, args=(told, role, name, rank, shape, theirs))
            process.start()
            workers.append((role, ours, process))
    return workers


def tell(pipes: Sequence[Connection], command: tuple[str, int]) -> list[int]:
    for pipe in pipes:
        pipe.send(command)
    return [pipe.recv() for pipe in pipes]


def private_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def ceilings(num_bytes: int, iterations: int) -> dict[str, float]:
    """Median seconds of moving as many bytes with nothing of ours in between."""
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    shared = np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8)
    shared[:] = 1

    def copy() -> None:
        target[:] = source

    def through_memory() -> None:
        shared[:] = source
        target[:] = shared

    def through_socket() -> None:
        ours, theirs = socket.create_connection(listener.getsockname()), listener.accept()[0]
        shared[:] = source
        sender = threading.Thread(target=ours.sendall, args=(shared.data,))
        sender.start()
        received = 0
        while received < num_bytes:
            received += theirs.recv_into(target[received:].data)
        sender.join()
        ours.close()
        theirs.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return {
            "memcpy": median(copy, iterations),
            "raw shared memory": median(through_memory, iterations),
            "shared memory + TCP": median(through_socket, iterations),
        }


def median(call: Callable[[], None], iterations: int) -> float:
    times = []
    for _ in range(WARM_UP + iterations):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tls", action="store_true", help="two hosts once more, with dataBuffer.tls")
    parser.add_argument("--spill", help="a directory: one host and two once more, with all rows in files there")
    options = parser.parse_args()
    cases = (*CASES, ENCRYPTED) if options.tls else CASES
    if options.spill:
        cases += tuple(replace(case, name=f"{case.name}, disk", spill=options.spill) for case in CASES[1:])
    print(
        f"{'path':<22}{'MB':>8}{'put ms':>9}{'get ms':>9}{'read ms':>9}{'GB/s':>8}{'of memcpy':>11}{'private MB':>12}"
    )
    for size in options.sizes:
        measured = {case.name: measure(case, SHAPES[size], options.iterations) for case in cases}
        num_bytes = int(measured["mapped"]["bytes"])
        limits = ceilings(num_bytes, options.iterations)
        for name, seconds in limits.items():
            speed, share = num_bytes / seconds / 1e9, limits["memcpy"] / seconds
            print(f"{name:<22}{num_bytes / 1e6:>8.2f}{seconds * 1e3:>18.2f}{'':>9}{speed:>8.2f}{share:>11.2f}")
        for name, found in measured.items():
            total = found["put"] + found["get"]
            cells = "".join(f"{found[key] * 1e3:>9.2f}" for key in ("put", "get", "read"))
            share = limits["memcpy"] / total
            print(
                f"{name:<22}{num_bytes / 1e6:>8.2f}{cells}{num_bytes / total / 1e9:>8.2f}{share:>11.2f}"
                f"{found['private'] / 1e6:>12.0f}"
            )


if __name__ == "__main__":
    main()
