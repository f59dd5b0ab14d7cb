"""Weights from the ranks that train to those that sample, between processes on one machine.

    python benchmarks/weight_sync.py [--megabytes 64 512] [--rounds 3]
    python benchmarks/weight_sync.py --links [--megabits 400] [--sources 1 2 4 8]    as root

The first form: `copies` is what one source and one receiver do to the bytes, on one core each. `1 -> 4` is one training
host and four that sample, each a data buffer and a worker, all processes; seconds are medians from the first tensor
written to the last one copied by the slowest receiver; GB/s counts the model once. Memory is the most private memory
that any one process held beyond what it had before. The ceilings move the same bytes without our code.

With --links every data buffer has a network namespace behind a token bucket: sources of `megabits`, and one receiver of
six times that. N sources are N training hosts that each send their part of one model; `of N links` is the speed of N
sources by N times that of one, `of the receiver's` that by the speed of the receiver's link. CPU is that of all data
buffers together, in cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from shaped_links import data_buffer_in, namespaces

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.tests.gang import Gang, as_processes, group, plan_of, stage
from rljob_worker.databuffer.weights.chunk_bytes import checksum_of
from rljob_worker.weights.buffers import BufferEnd
from rljob_worker.weights.chunks import read_tensors, write_tensors

EDGE = "weights/actor"
SHAPES = ((1, 1), (1, 4), (4, 4))
"""Hosts that train, hosts that sample."""
LARGE, MIDDLE, SMALL = 24 << 20, 1 << 20, 64 << 10
"""Bytes of the tensors. Large ones are cut; they are half of a model that is not small."""
MEMORY = "512Mi"
PORT, SCRAPED = 7001, 7002
RECEIVER_LINKS = 6
SAMPLE_SECONDS = 0.02


def sizes_of(num_bytes: int) -> list[int]:
    """Bytes of the tensors of a model."""
    num_large = num_bytes // 2 // LARGE if num_bytes >= 16 * LARGE else 0  # else they cannot be shared out evenly
    num_middle = (num_bytes - num_large * LARGE) * 7 // 8 // MIDDLE
    num_small = (num_bytes - num_large * LARGE - num_middle * MIDDLE) // SMALL
    return [LARGE] * num_large + [MIDDLE] * num_middle + [SMALL] * num_small


def tensors_of(num_bytes: int) -> dict[str, torch.Tensor]:
    """A model in bfloat16."""
    return {f"layer.{i}": torch.ones(size // 2, dtype=torch.bfloat16) for i, size in enumerate(sizes_of(num_bytes))}


def parts_of(model: dict[str, torch.Tensor], sources: int) -> list[list[tuple[str, torch.Tensor]]]:
    """What each source sends: about the same number of bytes."""
    parts: list[list[tuple[str, torch.Tensor]]] = [[] for _ in range(sources)]
    sizes = [0] * sources
    for name, tensor in model.items():
        least = sizes.index(min(sizes))
        parts[least].append((name, tensor))
        sizes[least] += tensor.nbytes
    return parts


def plan_for(sources: int, targets: int) -> Plan:
    train, rollout = group("train", sources, 1, ["b"]), group("rollout", targets, 1, ["a"])
    stages = [stage("a", "rollout", Mesh(dp=targets)), stage("b", "train", Mesh(dp=sources))]
    options = {"batch_size": sources * targets, "memory": MEMORY, "deadline_seconds": 120.0}
    return plan_of([rollout, train], stages, {"a->b": ["ids"]}, weights=("train", "rollout"), **options)


def work(gang: Gang, name: str, rank: int, num_bytes: int, commands: Connection) -> None:
    """One worker: sends its part, or copies all parts into its own tensors, for each version it is told."""
    torch.set_num_threads(1)
    client, model = gang.client(name, rank), tensors_of(num_bytes)
    sources = gang.plan.group("train").num_workers
    mine = parts_of(model, sources)[rank] if name == "train" else []
    end = BufferEnd(client, EDGE)
    commands.send("ready")
    while version := commands.recv():
        if name == "train":
            with end.sending(version) as out:
                out.send(mine)
        else:
            for key, tensor in read_tensors(end.receive(version)):
                model[key].copy_(tensor)
        commands.send(version)


class Team:
    """The workers of a gang, each a process."""

    def __init__(self, gang: Gang, num_bytes: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for each in gang.plan.groups:
            for rank in range(each.num_workers):
                ours, theirs = spawn.Pipe()
                args = (Gang(gang.plan, gang.directory), each.name, rank, num_bytes, theirs)
                self.processes.append(spawn.Process(target=work, args=args))
                self.processes[-1].start()
                self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.recv()

    def sync(self, version: int) -> float:
        """Seconds of one version."""
        start = time.perf_counter()
        for pipe in self.pipes:
            pipe.send(version)
        for pipe in self.pipes:
            pipe.recv()
        return time.perf_counter() - start

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(0)
        for process in self.processes:
            process.join()


class Watch:
    """The most private memory of processes beyond what they have now."""

    def __init__(self, processes: list[int]) -> None:
        self.before = {process: private_bytes(process) for process in processes}
        self.most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.most = max(self.most, *(private_bytes(p) - before for p, before in self.before.items()))

    def close(self) -> int:
        self._done.set()
        self._thread.join()
        return self.most


def private_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(sources: int, targets: int, num_bytes: int, rounds: int) -> tuple[float, int]:
    """Median seconds, and the most private memory."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as directory,
        as_processes(plan_for(sources, targets), Path(directory)) as gang,
    ):
        team = Team(gang, num_bytes)
        team.sync(1)
        watch = Watch([p.pid for p in gang.processes.values()] + [p.pid or 0 for p in team.processes])
        seconds = [team.sync(version) for version in range(2, rounds + 2)]
        memory = watch.close()
        team.close()
    return statistics.median(seconds), memory


# ---- what one source and one receiver do, and the ceilings


class LocalSlots:
    """Slots in this process, with the checksum that a client makes."""

    slot_bytes = 16 << 20

    def __init__(self) -> None:
        self._slots = torch.ones(4, self.slot_bytes, dtype=torch.uint8)
        self._turn = 0

    def reserve(self, num_bytes: int) -> torch.Tensor:
        self._turn = (self._turn + 1) % 4
        return self._slots[self._turn][:num_bytes]

    def seal(self, table: bytes, num_bytes: int | None = None) -> None:
        checksum_of(self._slots[self._turn][:num_bytes].numpy(), table)


def copies(num_bytes: int, rounds: int) -> dict[str, float]:
    """Seconds on one core."""
    torch.set_num_threads(1)
    model, slots = tensors_of(num_bytes), LocalSlots()
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.ones(num_bytes, dtype=torch.uint8)
    return {
        "memcpy": median(lambda: target.copy_(source), rounds),
        "write + checksum": median(lambda: write_tensors(slots, iter(model.items())), rounds),
        "checksum": median(lambda: checksum_of(source.numpy(), b""), rounds),
    }


def median(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def loopback(num_bytes: int, rounds: int) -> float:
    """Seconds of one TCP connection between two processes."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=drain, args=(theirs, num_bytes))
    process.start()
    data = torch.ones(num_bytes, dtype=torch.uint8).numpy().data
    with socket.create_connection(("127.0.0.1", ours.recv())) as connection:

        def send() -> None:
            connection.sendall(data)
            ours.recv()

        seconds = median(send, rounds)
    process.join()
    return seconds


def drain(told: Connection, num_bytes: int) -> None:
    """Read as many bytes as come, again and again."""
    room = memoryview(bytearray(num_bytes))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told.send(listener.getsockname()[1])
        connection = listener.accept()[0]
        received = 0
        while got := connection.recv_into(room[received:]):
            received = (received + got) % num_bytes
            if not received:
                told.send("all")


# ---- shaped links


@contextlib.contextmanager
def linked(plan: Plan, directory: Path, megabits: float) -> Iterator[Gang]:
    """Every data buffer in a network namespace; the receiver's link is RECEIVER_LINKS as fast as the others."""
    gang = Gang(plan, directory)
    gang.write_files()
    speeds = [megabits * (RECEIVER_LINKS if name == "rollout" else 1) for name, _ in gang.hosts()]
    with namespaces(speeds) as places:
        book: dict[str, list[str]] = {}
        try:
            for (name, host), place in zip(gang.hosts(), places, strict=True):
                environment = gang.environment(name, host) | {
                    "RLJOB_BUFFER_PORT": str(PORT),
                    "RLJOB_METRICS_PORT": str(SCRAPED),
                }
                gang.processes[f"{name}-{host}"] = data_buffer_in(place, environment)
                book.setdefault(name, []).append(f"{place.address}:{PORT}")
            for process in gang.processes.values():
                assert process.stdout is not None
                process.stdout.readline()
            (directory / "peers.json").write_text(json.dumps(book))
            yield gang
        finally:
            for process in gang.processes.values():
                process.kill()
                process.communicate()


def measure_links(sources: int, num_bytes: int, rounds: int, megabits: float) -> tuple[float, float]:
    """Median seconds, and cores that the data buffers used."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as directory,
        linked(plan_for(sources, 1), Path(directory), megabits) as gang,
    ):
        team, buffers = Team(gang, num_bytes), [process.pid for process in gang.processes.values()]
        team.sync(1)
        before = sum(map(cpu_seconds, buffers))
        seconds = [team.sync(version) for version in range(2, rounds + 2)]
        used = sum(map(cpu_seconds, buffers)) - before
        team.close()
    return statistics.median(seconds), used / sum(seconds)


def show_links(numbers: list[int], num_bytes: int, rounds: int, megabits: float) -> None:
    print(f"{'sources':>8}{'MB':>7}{'s':>8}{'MB/s':>8}{'of N links':>12}{'of the receiver':>17}{'cores':>7}")
    one = 0.0
    for sources in numbers:
        seconds, cores = measure_links(sources, num_bytes, rounds, megabits)
        speed = num_bytes / seconds
        one = one or speed / sources
        limit = megabits * RECEIVER_LINKS * 1e6 / 8
        print(
            f"{sources:>8}{num_bytes / 1e6:>7.0f}{seconds:>8.2f}{speed / 1e6:>8.1f}{speed / one / sources:>12.2f}"
            f"{speed / limit:>17.2f}{cores:>7.2f}",
            flush=True,
        )


def show_sizes(megabytes: list[int], rounds: int) -> None:
    print(f"{'':<20}{'MB':>7}{'s':>9}{'GB/s':>8}{'of memcpy':>11}{'of loopback':>13}{'private MB':>12}")
    for size in megabytes:
        num_bytes = size << 20
        ceilings = copies(num_bytes, rounds) | {"loopback TCP": loopback(num_bytes, rounds)}
        for name, seconds in ceilings.items():
            show(name, num_bytes, seconds, ceilings)
        for sources, targets in SHAPES:
            seconds, memory = measure(sources, targets, num_bytes, rounds)
            show(f"{sources} -> {targets}", num_bytes, seconds, ceilings, f"{memory / 1e6:.0f}")


def show(name: str, num_bytes: int, seconds: float, ceilings: dict[str, float], memory: str = "") -> None:
    shares = "".join(f"{ceilings[key] / seconds:>{width}.2f}" for key, width in (("memcpy", 11), ("loopback TCP", 13)))
    cells = f"{num_bytes / 1e6:>7.0f}{seconds:>9.3f}{num_bytes / seconds / 1e9:>8.2f}"
    print(f"{name:<20}{cells}{shares}{memory:>12}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--megabits", type=float, default=400)
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    if options.links:
        show_links(options.sources, options.megabytes[0] << 20, options.rounds, options.megabits)
    else:
        show_sizes(options.megabytes, options.rounds)


if __name__ == "__main__":
    main()
