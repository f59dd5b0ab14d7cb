"""A running job of many hosts."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process_usage import connections, cpu_seconds

from emulated_job.hosts import RETRY_SECONDS, Ears, EmulatedHost
from emulated_job.lead import lead_process
from emulated_job.reports import WORKERS_PER_HOST, payload_below, plan_for, report_of
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import FAN_OUT, VERDICT, JobTree
from rljob_worker.databuffer.tests.gang import Gang, start
from rljob_worker.databuffer.work import Timer
from rljob_worker.metrics.report import report_to_bytes

SETTLING_SECONDS = 0.05
"""Until everything but the last report has been merged."""


@dataclass(frozen=True)
class Cpu:
    """Seconds of CPU so far."""

    root: float
    inner: float
    lead: float
    judging: float
    """Of that, the thread that judges; the rest of the lead's process answers for this benchmark, too."""

    def since(self, before: Cpu) -> Cpu:
        return Cpu(
            self.root - before.root, self.inner - before.inner, self.lead - before.lead, self.judging - before.judging
        )


class EmulatedJob:
    """Steps of it, one after the other."""

    def __init__(self, num_hosts: int, directory: Path, stack: ExitStack) -> None:
        self.plan = plan_for(num_hosts)
        self.shape = JobTree.of(self.plan)
        self.gang = Gang(self.plan, directory)
        self.gang.write_files()
        self.ears = Ears()
        root = self.shape.root
        self.real = [root, *self.shape.children(root)[:1]] if num_hosts > FAN_OUT + 1 else [root]
        self.emulated = self._emulate(stack)
        self.processes = [self._start(host, stack) for host in self.real]
        self._write_address_book()
        self.followers = {
            (host, rank): self.gang.client("train", host.index * WORKERS_PER_HOST + rank)
            for host in self.real
            for rank in range(host == root, WORKERS_PER_HOST)
        }
        self._payloads = {place: self._payload(*place) for place in self.followers}
        self._threads = stack.enter_context(ThreadPoolExecutor(max(1, len(self.followers))))
        self._lead, theirs = multiprocessing.get_context("spawn").Pipe()
        gang = Gang(self.plan, directory)
        self._lead_process = multiprocessing.get_context("spawn").Process(target=lead_process, args=(gang, theirs))
        self._lead_process.start()
        stack.callback(self._lead_process.join)
        stack.callback(self._lead.send, None)
        below = self.shape.children(self.real[-1])
        self.leaf = below[0] if below else None
        self._judging = 0.0
        self.report_seconds: list[float] = []

    def _emulate(self, stack: ExitStack) -> dict[Host, EmulatedHost]:
        timer, address_book = Timer(print), self.gang.directory / "peers.json"
        stack.callback(timer.close)
        hosts = [child for real in self.real for child in self.shape.children(real) if child not in self.real]
        result = {}
        for host in hosts:
            payload = payload_below(self.shape, host)
            result[host] = EmulatedHost(self.plan, host, address_book, timer, payload, self.ears.heard)
            stack.callback(result[host].close)
        return result

    def _start(self, host: Host, stack: ExitStack) -> int:
        options = {"RLJOB_BUFFER_RETRY_SECONDS": str(RETRY_SECONDS), "RLJOB_BUFFER_START_SECONDS": str(RETRY_SECONDS)}
        process = start(self.gang, "train", host.index, RLJOB_BUFFER_FAN_OUT=str(FAN_OUT), **options)
        stack.callback(process.wait)
        stack.callback(process.kill)
        assert process.stdout is not None
        self.gang.ready[str(host)] = json.loads(process.stdout.readline())
        return process.pid

    def _write_address_book(self) -> None:
        ports = {Host("train", int(name.rpartition("-")[2])): line["port"] for name, line in self.gang.ready.items()}
        ports |= {host: emulated.port for host, emulated in self.emulated.items()}
        nobody = 1
        addresses = [f"127.0.0.1:{ports.get(self.shape.host(i), nobody)}" for i in range(self.shape.size)]
        aside = self.gang.directory / ".peers"
        aside.write_text(json.dumps({"train": addresses}))
        aside.rename(self.gang.directory / "peers.json")
        for host, emulated in self.emulated.items():
            emulated.links.watch([parent for parent in [self.shape.parent(host)] if parent is not None])

    def step(self, step: int) -> float:
        """Returns the seconds from the last report until its verdict is there."""
        self.all_but_the_last(step)
        time.sleep(SETTLING_SECONDS)
        return self.the_last(step)

    def all_but_the_last(self, step: int) -> None:
        self._lead.send(step)
        seconds, self._judging = self._lead.recv()
        self.report_seconds.append(seconds)
        for place in self.followers:
            if place != self._last_follower:
                self._threads.submit(self._follow, place, step)
        for host, emulated in self.emulated.items():
            parent = self.shape.parent(host)
            if parent is not None and host != self.leaf:
                emulated.report(parent, step)

    def the_last(self, step: int) -> float:
        begin = time.perf_counter()
        last: Any = self.leaf or self._last_follower
        if self.leaf is not None:
            self.emulated[self.leaf].report(self.real[-1], step)
        else:
            self._threads.submit(self._follow, last, step)
        (heard,) = self.ears.all_heard([last], step)
        self.ears.all_heard([*self.emulated, *self.followers], step)
        return heard - begin

    @property
    def _last_follower(self) -> tuple[Host, int] | None:
        """Where there is no leaf, a worker of the only host reports last."""
        return None if self.leaf else next(iter(self.followers))

    def _follow(self, place: tuple[Host, int], step: int) -> None:
        client = self.followers[place]
        client.report(step, self._payloads[place])
        client.await_announcement(VERDICT, step)
        self.ears.heard(place, step)

    def _payload(self, host: Host, rank: int) -> bytes:
        ordinal = self.shape.position(host) * WORKERS_PER_HOST + rank
        return report_to_bytes(report_of(ordinal), ordinal)

    def cpu(self) -> Cpu:
        root, *inner = self.processes
        lead = cpu_seconds(self._lead_process.pid)
        return Cpu(cpu_seconds(root), cpu_seconds(inner[0] if inner else None), lead, self._judging)

    def connections(self) -> list[int]:
        return [connections(process) for process in self.processes]


@contextmanager
def running(num_hosts: int) -> Iterator[EmulatedJob]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, ExitStack() as stack:
        job = EmulatedJob(num_hosts, Path(directory), stack)
        for client in job.gang.clients:
            stack.callback(client.close)
        yield job
