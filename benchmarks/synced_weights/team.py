"""Workers that send weights and workers that get them, each a process, over either transport between worker groups."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist
from private_memory import give_back_what_is_freed

from rljob_api.memory.weight_slices import WeightSlices
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan, WeightTransport
from rljob_api.planning.weights.flows import weight_flows
from rljob_worker.databuffer.tests.gang import Gang, as_processes, group, plan_of, stage
from rljob_worker.weights.buffers import BufferTransport
from rljob_worker.weights.chunks import unpack_tensors
from rljob_worker.weights.collective import CollectiveTransport
from rljob_worker.weights.slices import kept_by, sent_parts
from synced_weights.model import buckets_of, parts_of, tensors_of
from synced_weights.processes import ProcessWatch

MEMORY = "512Mi"
DEADLINE_SECONDS = 120.0


def plan_for(sources: int, targets: int, transport: WeightTransport = "DataBuffer", tensor: int = 1) -> Plan:
    """tensor: workers of each host that samples, which share one copy."""
    train, rollout = group("train", sources, 1, ["b"]), group("rollout", targets, tensor, ["a"])
    stages = [stage("a", "rollout", Mesh(dp=targets, tp=tensor)), stage("b", "train", Mesh(dp=sources))]
    options = {"batch_size": sources * targets, "memory": MEMORY, "deadline_seconds": DEADLINE_SECONDS}
    weights = ("train", "rollout")
    plan = plan_of([rollout, train], stages, {"a->b": ["ids"]}, weights=weights, transport=transport, **options)
    meshes = {item.group: item.mesh for item in stages}
    engines = tuple(engine.model_copy(update={"mesh": meshes[engine.group]}) for engine in plan.engines)
    return plan.model_copy(update={"engines": engines})


def work(gang: Gang, name: str, rank: int, num_bytes: int, meeting: str, commands: Connection) -> None:
    """One worker: sends its part, or copies all parts into its own tensors, for each requested version."""
    torch.set_num_threads(1)
    give_back_what_is_freed()
    (flow,) = weight_flows(gang.plan)
    if flow.transport == "DataBuffer":
        transport: BufferTransport | CollectiveTransport = BufferTransport(gang.client(name, rank))
    else:
        transport = CollectiveTransport(1, "gloo", torch.device("cpu"), DEADLINE_SECONDS)
    model, slices = tensors_of(num_bytes), WeightSlices(flow.tensor, heads=flow.tensor, key_heads=flow.tensor)
    kept = dict(sent_parts(model.items(), slices))
    mine = list(buckets_of(parts_of(model, gang.plan.group("train").num_workers)[rank])) if name == "train" else []
    sender = transport.sender(flow, rank) if name == "train" else None
    receiver = transport.receiver(flow, name, rank) if name == "rollout" else None
    if sender is not None:
        sender.open(meeting)
    if receiver is not None:
        receiver.open(meeting)
    commands.send("ready")
    while version := commands.recv():
        if sender is not None:
            with sender.sending(version) as out:
                for bucket in mine:
                    out.send(sent_parts(bucket, slices))
        num_bytes = 0
        if receiver is not None:
            for key, tensor in unpack_tensors(receiver.receive(version), kept_by(rank % flow.tensor)):
                kept[key].copy_(tensor)
                num_bytes += tensor.nbytes
        commands.send(num_bytes)


class SyncTeam:
    """The workers of a gang, each a process."""

    def __init__(self, gang: Gang, num_bytes: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.most_received = 0
        """Bytes of the last version that went into one worker."""
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for item in gang.plan.groups:
            for rank in range(item.num_workers):
                ours, theirs = spawn.Pipe()
                meeting = f"127.0.0.1:{self._store.port}"
                args = (Gang(gang.plan, gang.directory), item.name, rank, num_bytes, meeting, theirs)
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
        self.most_received = max(pipe.recv() for pipe in self.pipes)
        return time.perf_counter() - start

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(0)
        for process in self.processes:
            process.join()


def measure(
    sources: int, targets: int, num_bytes: int, rounds: int, transport: WeightTransport = "DataBuffer"
) -> tuple[float, int]:
    """Median seconds after the first version, and the most private memory of one process, the first included."""
    plan = plan_for(sources, targets, transport)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, _gang(plan, Path(directory)) as gang:
        team = SyncTeam(gang, num_bytes)
        watch = ProcessWatch([p.pid for p in gang.processes.values()] + [p.pid or 0 for p in team.processes])
        team.sync(1)
        seconds = [team.sync(version) for version in range(2, rounds + 2)]
        memory = watch.close()
        team.close()
    return statistics.median(seconds), memory


@contextmanager
def _gang(plan: Plan, directory: Path) -> Iterator[Gang]:
    """Broadcasts need no data buffers."""
    if plan.weights[0].transport == "Collective":
        yield Gang(plan, directory)
        return
    with as_processes(plan, directory) as gang:
        yield gang
