"""The steps of `training.profile.steps`, as one worker sees them.

What profiling breaks is warned about and left out; what it takes, before and after a step, no step is charged with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from rljob_worker.runtime.environment import WorkerEnvironment
from rljob_worker.runtime.figures import StepFigures
from rljob_worker.runtime.profiling.instruments import Instrument, instruments_of_torch
from rljob_worker.runtime.profiling.timeline import BlockRecorder

log = logging.getLogger(__name__)


def step_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "profile" / f"step-{step}"


@dataclass(frozen=True)
class Profiler:
    """Looks at some steps with instruments that each step gets anew."""

    steps: Collection[int]
    run_dir: Path
    name: str
    """Of this worker in the names of files: `train-0`."""
    figures: StepFigures
    instruments: Sequence[Callable[[], Instrument]]

    @contextmanager
    def profiled(self, step: int) -> Iterator[None]:
        """The block is the step. One that raises ends the process, and leaves no files."""
        if step not in self.steps:
            yield
            return
        started: list[Instrument] = []
        with self.figures.outside_of_steps():
            for make in self.instruments:
                _attempt(step, partial(_start, make, started))
        with self.figures.watched(f"step {step}"):
            yield
        with self.figures.outside_of_steps():
            for instrument in reversed(started):
                _attempt(step, partial(self._write, instrument, step))

    def _write(self, instrument: Instrument, step: int) -> None:
        folder = step_folder(self.run_dir, step)
        folder.mkdir(parents=True, exist_ok=True)
        instrument.write(folder / self.name)


def build_profiler(environment: WorkerEnvironment, figures: StepFigures, device: torch.device) -> Profiler:
    group, rank = environment.group, environment.rank
    recorder: Callable[[], Instrument] = partial(BlockRecorder, figures, group, rank)
    return Profiler(
        steps=environment.plan.spec.training.profile.steps,
        run_dir=environment.run_dir,
        name=f"{group}-{rank}",
        figures=figures,
        instruments=[recorder, *instruments_of_torch(device)],
    )


def _start(make: Callable[[], Instrument], started: list[Instrument]) -> None:
    instrument = make()
    instrument.start()
    started.append(instrument)


def _attempt(step: int, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:  # whatever a profiler, a driver or a full disk comes up with
        log.warning("profile of step %d: %s: %s; it is left out", step, type(error).__name__, error)
