"""Test gangs: a plan of a few hosts, their data buffers in this process or as processes, clients by rank."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import EdgePlan, EnginePlan, GroupPlan, Plan, StagePlan, WeightEdge, WeightTransport
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.process_environment import MALLOC_KEEPS_MEMORY
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.server.process import serve_buffer, settings_from
from rljob_worker.process.lifeline import LIFELINE_FD
from rljob_worker.tests.certificates import issue_here
from rljob_worker.tests.documents import job

TOKEN = "a-secret-of-the-job"


def spec(
    groups: Sequence[GroupPlan],
    batch_size: int,
    group_size: int,
    data_buffer: dict[str, Any],
    mini_batch_rows: int | None,
) -> RLJobSpec:
    return job(
        data={"train": [{"path": "t.jsonl"}], "batchSize": batch_size},
        algorithm={"name": "GRPO", "groupSize": group_size},
        workerGroups=[{"name": item.name} for item in groups],
        training={"miniBatchRows": mini_batch_rows},
        dataBuffer=data_buffer,
    ).spec


def stage(name: str, group: str, mesh: Mesh, balance: str = "None", needs_groups: bool = False) -> StagePlan:
    return StagePlan(
        name=name,
        run="User",
        group=group,
        models=(),
        engines=(),
        mesh=mesh,
        after=(),
        reads=(),
        writes=(),
        needs_groups=needs_groups,
        balance=balance,
    )


def group(name: str, replicas: int, workers_per_host: int, schedule: Sequence[str]) -> GroupPlan:
    return GroupPlan(
        name=name,
        replicas=replicas,
        workers_per_host=workers_per_host,
        device="cpu",
        backend="gloo",
        profile="cpu",
        schedule=tuple(schedule),
    )


def plan_of(
    groups: Sequence[GroupPlan],
    stages: Sequence[StagePlan],
    edges: dict[str, Sequence[str]],
    *,
    batch_size: int = 8,
    group_size: int = 2,
    memory: str = "4Mi",
    spill: dict[str, str] | None = None,
    deadline_seconds: float = TEST_TIMEOUT_SECONDS,
    mini_batch_rows: int | None = None,
    weights: tuple[str, str] | None = None,
    transport: WeightTransport = "DataBuffer",
    tls: bool = False,
) -> Plan:
    """`edges`: "a->b" to its columns. `weights`: groups of the training and of the generating engine, between which
    they go by `transport`."""
    data_buffer = {"memory": memory, "spill": spill, "deadlineSeconds": deadline_seconds, "tls": tls}
    engines: list[EnginePlan] = []
    weight_edges: tuple[WeightEdge, ...] = ()
    if weights:
        for name, kind, library, where in (
            ("train/actor", "Train", "FSDP", weights[0]),
            ("rollout/actor", "Rollout", "Transformers", weights[1]),
        ):
            engines.append(
                EnginePlan(
                    name=name,
                    kind=kind,
                    library=library,
                    model="actor",
                    path="tiny",
                    group=where,
                    mesh=Mesh(),
                    trainable=True,
                )
            )
        weight_edges = (
            WeightEdge(
                name="weights/actor", model="actor", source="train/actor", target="rollout/actor", transport=transport
            ),
        )
    return Plan(
        job="testing",
        groups=tuple(groups),
        engines=tuple(engines),
        stages=tuple(stages),
        edges=tuple(
            EdgePlan(name=name, producer=a, consumer=b, columns=tuple(columns), transport="Buffer")
            for name, columns in edges.items()
            for a, b in [name.split("->")]
        ),
        weights=weight_edges,
        lead_group=groups[-1].name,
        spec=spec(groups, batch_size, group_size, data_buffer, mini_batch_rows),
    )


def two_stages(
    producers: tuple[int, int] = (1, 2),
    consumers: tuple[int, int] = (1, 2),
    *,
    tp: int = 1,
    balance: str = "None",
    needs_groups: bool = False,
    producer_balance: str = "None",
    columns: Sequence[str] = ("ids", "score"),
    **options: Any,
) -> Plan:
    """Stage `a` on group `rollout` -> stage `b` on group `train`; each (hosts, workers per host)."""
    made, used = producers[0] * producers[1], consumers[0] * consumers[1]
    return plan_of(
        [group("rollout", *producers, ["a"]), group("train", *consumers, ["b"])],
        [
            stage("a", "rollout", Mesh(dp=made), producer_balance),
            stage("b", "train", Mesh(dp=used // tp, tp=tp), balance, needs_groups),
        ],
        {"a->b": columns},
        **options,
    )


@dataclass
class Gang:
    """Running data buffers by host name, such as `rollout-0`."""

    plan: Plan
    directory: Path
    processes: dict[str, Any] = field(default_factory=dict)
    ready: dict[str, dict[str, int]] = field(default_factory=dict)
    clients: list[BufferClient] = field(default_factory=list)

    def client(self, group: str, rank: int, **identity: Any) -> BufferClient:
        host = rank // self.plan.group(group).workers_per_host
        base = {"token": TOKEN, "attempt": 1, "plan_hash": self.plan.hash(), "group": group, "host": host, "rank": rank}
        client = BufferClient(self.directory / f"{group}-{host}.sock", Identity(**{**base, **identity}))
        self.clients.append(client)
        return client

    def close(self) -> None:
        """Close every client, however the test went: a socket left open is a ResourceWarning in another test."""
        for client in self.clients:
            client.close()

    def environment(self, group: str, host: int) -> dict[str, str]:
        name = f"{group}-{host}"
        return {
            "RLJOB_PLAN": str(self.directory / "plan.json"),
            "RLJOB_GROUP": group,
            "RLJOB_HOST_INDEX": str(host),
            "RLJOB_ATTEMPT": "1",
            "RLJOB_PEERS": str(self.directory / "peers.json"),
            "RLJOB_BUFFER": str(self.directory / f"{name}.sock"),
            "RLJOB_TOKEN_FILE": str(self.directory / "token"),
            "RLJOB_TLS_DIR": str(self.directory / "tls" / name),
            "RLJOB_ARENA_DIR": str(self.directory),
            "RLJOB_SPILL_DIR": str(self.directory),
            "RLJOB_BUFFER_RETRY_SECONDS": "0.5",
            "RLJOB_BUFFER_START_SECONDS": "5",
            "RLJOB_BUFFER_FAN_OUT": "2",
        }

    def hosts(self) -> list[tuple[str, int]]:
        return [(g.name, host) for g in self.plan.groups for host in range(g.replicas)]

    def write_files(self) -> None:
        (self.directory / "plan.json").write_text(json.dumps(self.plan.to_json()))
        (self.directory / "token").write_text(TOKEN + "\n")
        if self.plan.spec.data_buffer.tls:
            issue_here(self.plan, 1, self.directory / "tls")

    def write_book(self) -> None:
        book = {
            g.name: [f"127.0.0.1:{self.ready[f'{g.name}-{host}']['port']}" for host in range(g.replicas)]
            for g in self.plan.groups
        }
        aside = self.directory / ".peers"
        aside.write_text(json.dumps(book))
        aside.rename(self.directory / "peers.json")


@contextlib.contextmanager
def in_process(plan: Plan, directory: Path, **more: str) -> Iterator[Gang]:
    """Every data buffer in this process, on real sockets. None of them dies, so a slow one is waited for."""
    gang = Gang(plan, directory)
    gang.write_files()
    windows = dict.fromkeys(("RLJOB_BUFFER_RETRY_SECONDS", "RLJOB_BUFFER_START_SECONDS"), str(TEST_TIMEOUT_SECONDS))
    with serving_some(gang, gang.hosts(), **windows | more), contextlib.closing(gang):
        gang.write_book()
        yield gang


@contextlib.contextmanager
def serving_some(gang: Gang, hosts: Sequence[tuple[str, int]], **more: str) -> Iterator[None]:
    """The data buffers of some hosts in this process; their ports are in `gang.ready`."""
    with contextlib.ExitStack() as stack:
        for name, host in hosts:
            ports = stack.enter_context(serve_buffer(settings_from(gang.environment(name, host) | more)))
            gang.ready[f"{name}-{host}"] = ports
        yield


@contextlib.contextmanager
def as_processes(plan: Plan, directory: Path, begin: Callable[..., Any] | None = None, **more: str) -> Iterator[Gang]:
    """Every data buffer a process of its own, as in a job. begin: starts one, by default `start`."""
    gang = Gang(plan, directory)
    gang.write_files()
    try:
        for name, host in gang.hosts():
            gang.processes[f"{name}-{host}"] = (begin or start)(gang, name, host, **more)
        for name, process in gang.processes.items():
            assert process.stdout is not None
            gang.ready[name] = json.loads(process.stdout.readline())
        gang.write_book()
        yield gang
    finally:
        gang.close()
        for process in gang.processes.values():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def start(
    gang: Gang, group: str, host: int, module: str = "rljob_worker.databuffer", **more: str
) -> subprocess.Popen[str]:
    """A data buffer whose supervisor is this process: it ends with its standard input."""
    return subprocess.Popen(
        [sys.executable, "-m", module],
        env={**MALLOC_KEEPS_MEMORY, **os.environ, **gang.environment(group, host), LIFELINE_FD: "0", **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def part(
    plan: Plan, step: int, index: int, size: int, lengths: Mapping[int, int] | Sequence[int] | None = None
) -> Batch:
    """Rows that data-parallel rank `index` of `size` makes by ordinal."""
    n, members = plan.spec.data.batch_size, plan.spec.algorithm.group_size
    groups = [g for g in range((step - 1) * n, step * n) if (g % n) * size // n == index]
    return rows([g * members + m for g in groups for m in range(members)], members, lengths)


def rows(row_ids: Sequence[int], group_size: int, lengths: Mapping[int, int] | Sequence[int] | None = None) -> Batch:
    sizes = [1 + row % 5 for row in row_ids] if lengths is None else [lengths[row] for row in row_ids]
    columns = {
        "ids": Column.ragged([row * 10 + np.arange(size) for row, size in zip(row_ids, sizes, strict=True)], "int64"),
        "score": Column.fixed(np.asarray(row_ids, np.float32) / 2),
        "text": Column.strings([f"row {row}" for row in row_ids]),
    }
    return Batch.build(row_ids, [row // group_size for row in row_ids], columns, sizes)
