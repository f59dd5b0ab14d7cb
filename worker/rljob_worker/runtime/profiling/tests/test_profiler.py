"""A step is a step, whatever becomes of its profile."""

import gzip
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rljob_api.tests.builders import make_plan
from rljob_api.v1alpha1 import ProfileSpec
from rljob_worker.runtime.figures import StepFigures
from rljob_worker.runtime.profiling.profiler import (
    MemorySnapshot,
    Profiler,
    TorchTrace,
    build_profiler,
    has_track,
    instruments_of_torch,
)


class Camera:
    """Writes a picture, unless it breaks; each takes ten seconds to start and to write."""

    def __init__(self, clock, name="camera", breaks=""):
        self._clock, self._name, self._breaks = clock, name, breaks
        if breaks == "made":
            raise ImportError("no film")

    def start(self):
        self._clock.now += 10
        if self._breaks == "start":
            raise RuntimeError("dark")

    def write(self, stem):
        self._clock.now += 10
        if self._breaks == "write":
            raise OSError("full")
        stem.with_name(f"{stem.name}.{self._name}").write_text("picture")


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def profiler_of(folder, clock, *makes):
    return Profiler((2,), folder, "train-1", StepFigures(clock), makes)


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_the_steps_that_are_asked_for_have_files_and_none_is_charged_with_them(tmp_path, clock):
    profiler = profiler_of(tmp_path, clock, lambda: Camera(clock))
    for step in (1, 2, 3):
        with profiler.profiled(step):
            clock.now += step
        report = profiler.figures.take(is_step=True)
        assert report.metrics["time/step_seconds"].value == step
    assert files_of(tmp_path) == ["profile/step-2/train-1.camera"]


def test_a_stage_that_is_asked_for_has_files_of_its_own_and_is_not_charged_with_them(tmp_path, clock):
    profiler = replace(profiler_of(tmp_path, clock), stages={"update": [lambda: Camera(clock)]})
    for step in (1, 2):
        with profiler.profiled(step):
            for stage in ("rollout", "update"):
                with profiler.profiled_stage(step, stage):
                    clock.now += 1
        assert profiler.figures.take(is_step=True).metrics["time/step_seconds"].value == 2
    assert files_of(tmp_path) == ["profile/step-2/train-1.update.camera"]


def profiler_of_job(folder, rank, **profile):
    plan = make_plan("workerGroups=[{name: train, replicas: 4, accelerator: {count: 32}}]", "data.batchSize=128")
    training = plan.spec.training.model_copy(update={"profile": ProfileSpec(steps=(2,), **profile)})
    plan = plan.model_copy(update={"spec": plan.spec.model_copy(update={"training": training})})
    there = {"plan": plan, "group": "train", "group_plan": plan.group("train"), "rank": rank, "run_dir": folder}
    return build_profiler(SimpleNamespace(**there), StepFigures(), torch.device("cpu"))


def test_rank_0_of_a_group_is_traced_unless_others_are_asked_for(tmp_path):
    # 128 workers: every second one is in the timeline, and whoever is traced
    num_instruments = {rank: len(profiler_of_job(tmp_path, rank).instruments) for rank in range(4)}
    assert num_instruments == {0: 2, 1: 0, 2: 1, 3: 0}
    num_instruments = {rank: len(profiler_of_job(tmp_path, rank, ranks=(1, 2)).instruments) for rank in range(4)}
    assert num_instruments == {0: 1, 1: 2, 2: 2, 3: 0}


def test_stages_that_are_asked_for_are_traced_in_place_of_the_step(tmp_path):
    first, second = (profiler_of_job(tmp_path, rank, stages=("update",)) for rank in (0, 1))
    assert (len(first.instruments), first.stages) == (1, {"update": [TorchTrace]})
    assert (len(second.instruments), second.stages) == (0, {"update": []})


@pytest.mark.parametrize(("num_workers", "tracks"), [(1, 1), (64, 64), (65, 33), (8192, 64), (100, 50)])
def test_a_timeline_has_a_bounded_number_of_workers(num_workers, tracks):
    assert sum(has_track(rank, num_workers, ()) for rank in range(num_workers)) == tracks


@pytest.mark.parametrize(("breaks", "words"), [("made", "no film"), ("start", "dark"), ("write", "full")])
def test_what_breaks_is_warned_about_and_the_others_go_on(tmp_path, clock, caplog, breaks, words):
    broken, whole = lambda: Camera(clock, breaks=breaks), lambda: Camera(clock, "other")
    with profiler_of(tmp_path, clock, broken, whole).profiled(2):
        clock.now += 1
    assert files_of(tmp_path) == ["profile/step-2/train-1.other"]
    assert "profile of step 2" in caplog.text and words in caplog.text


def test_a_folder_that_cannot_be_made_costs_no_step(tmp_path, clock, caplog):
    (tmp_path / "profile").write_text("a file")
    with profiler_of(tmp_path, clock, lambda: Camera(clock)).profiled(2):
        clock.now += 1
    assert "it is left out" in caplog.text


def test_what_a_step_raises_is_raised_and_leaves_no_files(tmp_path, clock):
    profiler = profiler_of(tmp_path, clock, lambda: Camera(clock))
    with pytest.raises(LookupError), profiler.profiled(2):
        raise LookupError
    assert files_of(tmp_path) == []


def test_the_trace_of_torch_has_its_operations(tmp_path):
    trace = TorchTrace()
    trace.start()
    torch.ones(3, 4) @ torch.ones(4, 5)
    trace.write(tmp_path / "train-0")
    events = json.loads(gzip.decompress((tmp_path / "train-0.trace.json.gz").read_bytes()))["traceEvents"]
    assert "aten::mm" in {event.get("name") for event in events}


class DeviceMemory:
    """A fake of a device's memory recording: remembers what it is asked to keep."""

    def __init__(self, breaks=False):
        self.kept, self._breaks = [], breaks

    def _record_memory_history(self, enabled="all", **options):
        self.kept.append(enabled)

    def _dump_snapshot(self, path):
        if self._breaks:
            raise OSError("full")
        with open(path, "w") as file:
            file.write(str(self.kept))


def test_a_snapshot_of_memory_ends_the_history(tmp_path):
    memory = DeviceMemory()
    snapshot = MemorySnapshot(SimpleNamespace(memory=memory))
    snapshot.start()
    snapshot.write(tmp_path / "train-0")
    assert (tmp_path / "train-0.memory.pickle").read_text() == "['all']" and memory.kept == ["all", None]


def test_a_snapshot_that_cannot_be_written_ends_the_history_too(tmp_path):
    memory = DeviceMemory(breaks=True)
    with pytest.raises(OSError, match="full"):
        MemorySnapshot(SimpleNamespace(memory=memory)).write(tmp_path / "train-0")
    assert memory.kept == [None]


def test_only_devices_have_snapshots_of_memory():
    assert instruments_of_torch(torch.device("cpu")) == [TorchTrace]
    assert len(instruments_of_torch(torch.device("cuda"))) == 2
