"""Every way of weights with real transports and engines of a few lines, each rank a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from rljob_api.memory.weight_slices import WeightSlices
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan, WeightTransport
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.v1alpha1 import WeightDeltaSpec
from rljob_worker.databuffer.tests.gang import Gang, group, in_process, plan_of, stage
from rljob_worker.engines.arriving_policy import copy_policy
from rljob_worker.engines.rollout.slices import own_slices
from rljob_worker.metrics.scalars import Scalars
from rljob_worker.weights.buffers import BufferTransport
from rljob_worker.weights.collective import CollectiveTransport
from rljob_worker.weights.sync import WeightSync, build_weight_sync

Named = tuple[str, torch.Tensor]
TRAIN, ROLLOUT = "train", "rollout"
HEADS, KEY_HEADS = 8, 2
CPU = torch.device("cpu")


class Policy:
    """What is trained, in buckets that all trainers gather together."""

    def __init__(self, num_trainers: int) -> None:
        self.buckets: list[list[Named]] = []
        self.gathering = threading.Barrier(num_trainers, timeout=TEST_TIMEOUT_SECONDS)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(item for bucket in self.buckets for item in bucket)


class Trainer:
    """One rank of a TrainEngine, as far as weights go."""

    def __init__(self, policy: Policy, rank: int) -> None:
        self.policy, self.rank = policy, rank
        self.fails_in_round = -1

    def weights(self, dtype: torch.dtype | None = None, *, trained_only: bool = False) -> Iterator[Named]:
        return (item for bucket in self.policy.buckets for item in bucket)

    def weight_buckets(
        self, sources: Sequence[int], dtype: torch.dtype | None = None, *, trained_only: bool = False
    ) -> Iterator[Iterator[Named]]:
        buckets = self.policy.buckets
        for first in range(0, len(buckets), len(sources)):
            if first // len(sources) == self.fails_in_round:
                raise ZeroDivisionError("a bug")
            self.policy.gathering.wait()
            mine = dict(zip(sources, buckets[first : first + len(sources)], strict=False))
            # memory that is used again: a tensor is good until the next is asked for
            room = torch.empty(0, dtype=torch.uint8)
            yield ((name, _into(room, tensor)) for name, tensor in mine.get(self.rank, []))
            room.resize_(0)


def _into(room: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    view = room.resize_(max(1, tensor.nbytes)).fill_(0)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return view.copy_(tensor)


class Sampler:
    """A RolloutEngine, as far as weights go."""

    def __init__(self, slices: WeightSlices, rank: int) -> None:
        self.slices, self.rank = slices, rank
        self.tensors: dict[str, torch.Tensor] = {}
        self.version = 0

    def hold(self, tensors: dict[str, torch.Tensor]) -> None:
        """Have room for what this rank keeps of a policy."""
        self.tensors = {name: torch.zeros_like(tensor) for name, tensor in self.kept(tensors).items()}

    def kept(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What this rank keeps of a policy."""
        return dict(own_slices(tensors.items(), self.slices, self.rank))

    def load_weights(self, weights: Iterator[Named], version: int, *, lasting: bool = False) -> None:
        def as_they_should_be() -> Iterator[Named]:
            for name, tensor in weights:
                wanted = self.tensors.get(name)
                assert wanted is None or tensor.dtype == wanted.dtype, f"{name} came as {tensor.dtype}"
                yield name, tensor

        copy_policy(self.tensors, as_they_should_be(), version)
        self.version = version


class Way:
    """All ranks of one edge."""

    def __init__(self, plan: Plan, transports: dict[tuple[str, int], dict[WeightTransport, object]]) -> None:
        (edge,) = plan.weights
        train, rollout = plan.engine(edge.source).group, plan.engine(edge.target).group
        self.policy = Policy(plan.group(train).num_workers)
        self.trainers = [Trainer(self.policy, rank) for rank in range(plan.group(train).num_workers)]
        tensor = plan.engine(edge.target).mesh.tp
        slices = WeightSlices(tensor, HEADS, KEY_HEADS)
        self.samplers = [Sampler(slices, rank % tensor) for rank in range(plan.group(rollout).num_workers)]
        self.syncs: list[WeightSync] = []
        self.version = 0
        self.done: list[Scalars] = []
        """What each rank did about the last version, in the order in which they were ready."""
        for name in dict.fromkeys((train, rollout)):
            for rank in range(plan.group(name).num_workers):
                engines = (
                    {"actor": self.trainers[rank]} if name == train else {},
                    {"actor": self.samplers[rank]} if name == rollout else {},
                )
                self.syncs.append(
                    build_weight_sync(plan, name, rank, transports[name, rank], *engines, {"actor": slices}, CPU)
                )

    def hold(self, buckets: list[list[Named]]) -> None:
        """The policy that is trained, and a sampler's of the same kind."""
        self.policy.buckets = buckets
        for sampler in self.samplers:
            sampler.hold(self.policy.tensors)

    def each(self, work: object) -> list[BaseException | None]:
        """What `work` raised on each rank, those that train first."""
        with ThreadPoolExecutor(len(self.syncs)) as pool:
            return [future.exception() for future in [pool.submit(work, sync) for sync in self.syncs]]

    def sync(self) -> list[BaseException | None]:
        """The next version, on every rank."""
        self.version += 1
        self.done = []
        return self.each(lambda sync: self.done.append(sync.sync(self.version)))

    def assert_synced(self) -> None:
        for error in self.sync():
            if error is not None:
                raise error
        for sampler in self.samplers:
            assert sampler.version == self.version
            assert_same(sampler.tensors, sampler.kept(self.policy.tensors))


def assert_same(result: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(result) == set(expected)
    for name, tensor in expected.items():
        assert result[name].dtype == tensor.dtype and torch.equal(result[name], tensor), name


def plan_for(transport: WeightTransport, trainers: int, samplers: int, tensor: int = 1) -> Plan:
    """Trainers in one pod, copies that sample in a pod each, of `tensor` ranks."""
    train = group(TRAIN, 1, trainers, ["b"])
    if transport == "InProcess":
        stages = [stage("b", TRAIN, Mesh(dp=trainers))]
        return plan_of([train], stages, {}, batch_size=24, weights=(TRAIN, TRAIN), transport=transport)
    rollout, copies = group(ROLLOUT, samplers // tensor, tensor, ["a"]), Mesh(dp=samplers // tensor, tp=tensor)
    stages = [stage("a", ROLLOUT, copies), stage("b", TRAIN, Mesh(dp=trainers))]
    options = {"batch_size": 24, "memory": "16Mi", "weights": (TRAIN, ROLLOUT), "transport": transport}
    options["deadline_seconds"] = 60.0
    plan = plan_of([rollout, train], stages, {"a->b": ["ids"]}, **options)
    meshes = {"Train": Mesh(dp=trainers), "Rollout": copies}
    engines = tuple(engine.model_copy(update={"mesh": meshes[engine.kind]}) for engine in plan.engines)
    return plan.model_copy(update={"engines": engines})


@contextmanager
def way(
    transport: WeightTransport,
    directory: Path,
    trainers: int = 1,
    samplers: int = 1,
    *,
    full_every: int | None = None,
    seconds: float = 20.0,
    tensor: int = 1,
) -> Iterator[Way]:
    """full_every: of what is sent as changes; None: all is sent whole. seconds: the deadline of broadcasts. tensor:
    ranks of a copy that samples."""
    plan = plan_for(transport, trainers, samplers, tensor)
    if full_every is not None:
        sync = plan.spec.weight_sync.model_copy(update={"delta": WeightDeltaSpec(full_every=full_every)})
        plan = plan.model_copy(update={"spec": plan.spec.model_copy(update={"weight_sync": sync})})
    ranks = [(item.name, rank) for item in plan.groups for rank in range(item.num_workers)]
    with ExitStack() as stack:
        transports: dict[tuple[str, int], dict[WeightTransport, object]] = {place: {} for place in ranks}
        if transport == "DataBuffer":
            gang: Gang = stack.enter_context(in_process(plan, directory))
            transports = {place: {transport: BufferTransport(gang.client(*place))} for place in ranks}
        if transport == "Collective":
            collective = CollectiveTransport(1, "gloo", CPU, seconds, slot_bytes=4096)
            transports = {place: {transport: collective} for place in ranks}
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        made = Way(plan, transports)
        assert made.each(lambda sync: sync.open(f"127.0.0.1:{store.port}")) == [None] * len(made.syncs)
        yield made
        made.each(lambda sync: sync.close())
