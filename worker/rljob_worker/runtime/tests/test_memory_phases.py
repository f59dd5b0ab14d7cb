"""Who sleeps before and after a step has generated, and how deeply."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rljob_api.tests.builders import make_plan
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
