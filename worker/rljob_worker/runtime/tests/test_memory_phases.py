"""Who sleeps before and after a step has generated, and how deeply."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.planning.memory.layouts import parallel_layout
from rljob_api.planning.planner import plan as plan_of
from rljob_api.tests.builders import make_job, make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.parallel.mesh import alone
from rljob_worker.engines.rollout.tests.scripted import ScriptedEngine
from rljob_worker.runtime.figures import StepFigures
from rljob_worker.runtime.memory_phases import begin_generation, end_generation, is_worth_sleeping
from rljob_worker.runtime.setup import resources
from rljob_worker.runtime.worker import Worker
from rljob_worker.stages.stage import Resources, StageResult

MIB = 1 << 20


class Holding(ScriptedEngine):
    """An engine with a cache and weights of these sizes."""

    def __init__(self, cache, weights):
        super().__init__(lambda row_id, sampling: [])
        self.bytes = {"Cache": cache, "Weights": cache + weights}
        self.slept = []

    def held_bytes(self, depth):
        return self.bytes[depth]

    def sleep(self, depth):
        self.slept.append(depth)


def never(*_: Any) -> None:
    raise AssertionError("it is only to sleep")


class Training:
    """A TrainEngine with an optimizer of this size."""

    log_probs = values = update = weights = weight_buckets = copy_shards = load = never

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes, self.slept = num_bytes, 0

    def held_bytes(self) -> int:
        return self.num_bytes

    def sleep(self) -> None:
        self.num_bytes, self.slept = 0, self.slept + 1


def a_worker(train: Any, rollout: Any, **parts: Any) -> Worker:
    """With these engines and parts, and nobody to hand anything to."""
    plan = make_plan()
    meshes = {stage.mesh: alone(torch.device("cpu")) for stage in plan.stages}
    nothing: dict[str, Any] = dict.fromkeys(["client", "checkpoints", "control", "opening"])
    return Worker(
        environment=SimpleNamespace(plan=plan, rank=0),  # type: ignore[arg-type]
        resources=Resources(plan, train, rollout, meshes=meshes),
        schedule=(),
        handover=SimpleNamespace(take=lambda *_: None, give=lambda *_: None),  # type: ignore[arg-type]
        figures=StepFigures(),
        profiler=SimpleNamespace(profiled_stage=lambda *_: nullcontext()),  # type: ignore[arg-type]
        status=lambda _: None,  # type: ignore[arg-type]
        **{"weights": None, "validations": {}, **nothing, **parts},
    )


def test_little_memory_is_not_given_back():
    assert not is_worth_sleeping(64 * MIB - 1) and is_worth_sleeping(64 * MIB)


def test_weights_are_dropped_only_where_others_come():
    for gets_weights, expected in ((True, ["Weights"]), (False, [])):
        engine = Holding(cache=MIB, weights=100 * MIB)
        end_generation([engine], gets_weights=gets_weights)
        assert engine.slept == expected
    engine = Holding(cache=100 * MIB, weights=0)
    end_generation([engine], gets_weights=False)
    assert engine.slept == ["Cache"]


def test_optimizers_sleep_while_others_generate():
    large, small = Training(64 * MIB), Training(64 * MIB - 1)
    engines: list[Any] = [large, small]
    for _ in range(2):  # once asleep, nothing is left to give back
        begin_generation(engines)
        assert (large.slept, small.slept) == (1, 0)


def test_what_measures_its_device_while_it_is_built_finds_optimizers_asleep(monkeypatch):
    plan, cpu = make_plan(), torch.device("cpu")
    training, slept = Training(64 * MIB), list[int]()
    monkeypatch.setattr(resources, "build_rollout_engine", lambda *_, **__: slept.append(training.slept))
    generating = [engine for engine in plan.engines if engine.kind == "Rollout"]
    meshes = {engine.mesh: alone(cpu) for engine in generating}
    trained: Any = {"actor": training}
    assert resources.rollout_engines(plan, [], cpu, meshes, trained) == {} and training.slept == 0
    resources.rollout_engines(plan, generating, cpu, meshes, trained)
    assert slept == [1]


def test_weights_come_where_optimizers_sleep():
    training = Training(64 * MIB)
    synced: list[int] = []
    weights = SimpleNamespace(sync=lambda version, keep: synced.append(training.slept) or {})
    for rollout in ({}, {"actor": Holding(cache=0, weights=0)}):
        worker = a_worker({"actor": training}, rollout, weights=weights)
        worker.sync_weights(1)
    assert synced == [0, 1]  # who only trains goes on to do so


def test_a_worker_makes_room_before_it_generates_and_after():
    training, rollout = Training(100 * MIB), Holding(cache=100 * MIB, weights=0)
    seen: dict[str, tuple[int, int]] = {}
    rows = Batch.build(np.arange(2), np.zeros(2, np.int64), {"rewards": Column.fixed(np.ones(2))})

    class Watched:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, batch: Any, context: Any) -> StageResult:
            seen[self.name] = (training.slept, len(rollout.slept))
            return StageResult(rows)

    def validated(take: object) -> tuple[dict[str, Any], list[Any]]:
        seen["validation"] = (training.slept, len(rollout.slept))
        return {}, []

    worker = a_worker({"actor": training}, {"actor": rollout}, validations={"actor": SimpleNamespace(run=validated)})
    for name in ("reference", "rollout", "update"):
        stage = next(stage for stage in worker.plan.stages if stage.name == name)
        worker.run_stage(stage, Watched(name), step=1)
    assert seen == {"reference": (0, 0), "rollout": (1, 0), "update": (1, 1)}
    training.num_bytes = 100 * MIB  # awake since the update
    worker.validate(1)
    assert seen["validation"] == (2, 1)


class Device:
    """Counts what engines have on it, phase by phase."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.seen: dict[str, int] = {}

    def look(self, phase: str) -> None:
        self.seen[phase] = max(self.seen.get(phase, 0), sum(self.held.values()))


class OnDevice(Training):
    """Trains a model whose shard stays, and whose optimizer sleeps on the host."""

    def __init__(self, device: Device, shard: int, optimizer: int) -> None:
        super().__init__(optimizer)
        self.device, self.optimizer = device, optimizer
        device.held |= {"shard": shard, "optimizer": optimizer}

    def sleep(self) -> None:
        super().sleep()
        self.device.held["optimizer"] = 0

    def wake(self) -> None:
        self.num_bytes = self.device.held["optimizer"] = self.optimizer


class CopyOnDevice(Holding):
    """Generates with a copy of the weights, which goes for good at the depth of weights."""

    def __init__(self, device: Device, copy: int) -> None:
        super().__init__(cache=0, weights=copy)
        self.device, self.copy = device, copy
        self.load()

    def load(self) -> None:
        self.device.held["copy"] = self.copy

    def sleep(self, depth: str) -> None:
        super().sleep(depth)
        if depth == "Weights":
            self.device.held["copy"] = 0


QWEN3_32B = QWEN3_8B | {
    "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64,
}  # fmt: skip
QWEN3_30B_A3B = QWEN3_8B | {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip
QWEN3_235B = QWEN3_30B_A3B | {
    "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64, "moe_intermediate_size": 1536,
}  # fmt: skip


@pytest.mark.parametrize(
    "config, billions, hosts, tensor",
    [(QWEN3_8B, 8.19, 1, 1), (QWEN3_32B, 32.8, 4, 2), (QWEN3_30B_A3B, 30.5, 4, 2), (QWEN3_235B, 235, 32, 8)],
    ids=["8B", "32B", "30B-A3B", "235B"],
)
def test_a_plan_counts_in_every_phase_what_is_awake_in_it(config, billions, hosts, tensor):
    """A step of a worker whose engines really go to sleep, beside what its plan says, without what passes by."""
    group = f"workerGroups=[{{name: train, replicas: {hosts}, accelerator: {{profile: nvidia-b200, count: 8}}}}]"
    job = make_job(
        group, "data.batchSize=256", "algorithm.kl.coefficient=0", "rollout.engine=VLLM", "dataBuffer.memory=64Gi",
        f"rollout.parallelism.tensor={tensor}", "checkpoint.everySteps=1",
    )  # fmt: skip
    planned = plan_of(job, shapes={"models/tiny": parse_shape(config)})
    numbers = billions * 1e9
    device = Device()
    training = OnDevice(device, shard=int(4 * numbers / (8 * hosts)), optimizer=int(8 * numbers / (8 * hosts)))
    rollout = CopyOnDevice(device, copy=int(2 * numbers / tensor))
    device.look("load")

    def synced(version: int, keep: object) -> dict[str, Any]:
        rollout.load()
        device.look("sync")
        return {}

    class Looked:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, batch: Any, context: Any) -> StageResult:
            if self.name == "update":
                training.wake()
            device.look({"rollout": "generate", "update": "train"}[self.name])
            return StageResult(Batch.build(np.arange(2), np.zeros(2, np.int64), {"rewards": Column.fixed(np.ones(2))}))

    weights = SimpleNamespace(sync=synced)
    worker = a_worker({"actor": training}, {"actor": rollout}, weights=weights)
    for name in ("rollout", "update"):
        worker.run_stage(next(stage for stage in worker.plan.stages if stage.name == name), Looked(name), step=1)
    worker.sync_weights(1)
    device.look("checkpoint")
    (memory,) = planned.memory
    layout = parallel_layout(planned, planned.engine("train/actor"), parse_shape(config), 0)
    passing = {"train": layout.gathered + layout.stepped}
    stated = {phase.phase: phase.weights + phase.optimizer - passing.get(phase.phase, 0) for phase in memory.phases}
    assert stated == {phase: pytest.approx(seen, rel=0.1) for phase, seen in device.seen.items()}
