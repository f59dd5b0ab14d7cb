"""The steps and stages of `training.profile`, as one worker sees them.

What profiling breaks is warned about and left out; what it takes, before and after a step, no step is charged with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import profile, supported_activities

from rljob_worker.runtime.figures import StepFigures
from rljob_worker.runtime.profiling.timeline import BlockRecorder
from rljob_worker.runtime.setup.environment import WorkerEnvironment

log = logging.getLogger(__name__)

MAX_TRACKS = 64
"""Workers of a group in a timeline: more are not readable, and their files too many for one folder and one reader."""

_MOST_EVENTS = 200_000
"""Allocations and releases of memory that are kept, the newest."""


class Instrument(Protocol):
    """Looks at one step."""

    def start(self) -> None: ...

    def write(self, stem: Path) -> None:
        """Stop, and write a file whose name begins with `stem`."""


MakeInstrument = Callable[[], Instrument]


def step_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "profile" / f"step-{step}"


@dataclass(frozen=True)
class Profiler:
    """Looks at some steps with instruments that each step gets anew."""

    steps: Collection[int]
    run_dir: Path
    name: str
    """Name of this worker in the names of files: `train-0`."""
    figures: StepFigures
    instruments: Sequence[MakeInstrument]
    """Instruments of whole steps."""
    stages: Mapping[str, Sequence[MakeInstrument]] = field(default_factory=dict)
    """Instruments of single stages."""

    @contextmanager
    def profiled(self, step: int) -> Iterator[None]:
        """The block is the step. One that raises ends the process, and leaves no files."""
        with self._looked_at(step, self.instruments, self.name), self.figures.watched(f"step {step}"):
            yield

    @contextmanager
    def profiled_stage(self, step: int, stage: str) -> Iterator[None]:
        """The block is a stage of the step."""
        with self._looked_at(step, self.stages.get(stage, ()), f"{self.name}.{stage}"):
            yield

    @contextmanager
    def _looked_at(self, step: int, makes: Sequence[MakeInstrument], name: str) -> Iterator[None]:
        if step not in self.steps or not makes:
            yield
            return
        started: list[Instrument] = []
        with self.figures.outside_of_steps():
            for make in makes:
                _attempt(step, partial(_start, make, started))
        yield
        with self.figures.outside_of_steps():
            for instrument in reversed(started):
                _attempt(step, partial(self._write, instrument, step, name))

    def _write(self, instrument: Instrument, step: int, name: str) -> None:
        folder = step_folder(self.run_dir, step)
        folder.mkdir(parents=True, exist_ok=True)
        instrument.write(folder / name)


def build_profiler(environment: WorkerEnvironment, figures: StepFigures, device: torch.device) -> Profiler:
    group, rank, profile = environment.group, environment.rank, environment.plan.spec.training.profile
    recorder: MakeInstrument = partial(BlockRecorder, figures, group, rank)
    traces = instruments_of_torch(device) if rank in profile.ranks else []
    tracks = [recorder] if has_track(rank, environment.group_plan.num_workers, profile.ranks) else []
    return Profiler(
        steps=profile.steps,
        run_dir=environment.run_dir,
        name=f"{group}-{rank}",
        figures=figures,
        instruments=tracks if profile.stages else [*tracks, *traces],
        stages=dict.fromkeys(profile.stages, traces),
    )


def has_track(rank: int, num_workers: int, ranks: Collection[int]) -> bool:
    """Whether a worker is in the timeline: one of `ranks`, or of at most `MAX_TRACKS` that lie evenly in its group."""
    return rank in ranks or rank % -(-num_workers // MAX_TRACKS) == 0


def _start(make: Callable[[], Instrument], started: list[Instrument]) -> None:
    instrument = make()
    instrument.start()
    started.append(instrument)


def _attempt(step: int, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:  # whatever a profiler, a driver or a full disk comes up with
        log.warning("profile of step %d: %s: %s; it is left out", step, type(error).__name__, error)


class TorchTrace:
    """Operations and, on devices, their kernels: Chrome JSON, for ui.perfetto.dev."""

    def __init__(self) -> None:
        self._profile = profile(activities=supported_activities())

    def start(self) -> None:
        self._profile.start()

    def write(self, stem: Path) -> None:
        self._profile.stop()
        self._profile.export_chrome_trace(str(stem.with_name(stem.name + ".trace.json.gz")))


class MemorySnapshot:
    """Every allocation of a device since the step began, with where in Python it was made: for pytorch.org/memory_viz.

    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    """

    def __init__(self, device_module: Any) -> None:
        """device_module: `torch.cuda`, or what another device has in its place."""
        self._module = device_module

    def start(self) -> None:
        self._module.memory._record_memory_history(stacks="python", max_entries=_MOST_EVENTS)

    def write(self, stem: Path) -> None:
        try:
            self._module.memory._dump_snapshot(str(stem.with_name(stem.name + ".memory.pickle")))
        finally:
            self._module.memory._record_memory_history(enabled=None)


def instruments_of_torch(device: torch.device) -> list[Callable[[], Instrument]]:
    """Snapshots of memory are of devices."""
    if device.type == "cpu":
        return [TorchTrace]
    return [TorchTrace, lambda: MemorySnapshot(torch.get_device_module(device))]
