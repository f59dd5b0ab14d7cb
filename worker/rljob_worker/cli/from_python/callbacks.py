"""Callbacks of `rljob.run`: called as the run goes on, named where they raise, interrupted where they do not return."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.cli.views.figures import StepWarnings
from rljob_worker.errors import RLJobError
from rljob_worker.local.watching.progress import MetricsTail
from rljob_worker.rundir.directory import RunDirectory, RunNote

CALLBACK_SECONDS = 600.0
"""While a callback works the workers go on, and nobody looks after them."""


class CallbackTimeout(RLJobError):
    """A callback did not return in time."""

    exit_code = ExitCode.INVALID_JOB

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"no return within {seconds:g} s; put what takes long into a thread, or set callback_seconds of rljob.run"
        )


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """What is called while a job runs, in the thread that runs it; an exception ends the run, and so does a call that
    does not return."""

    on_step: Callable[[int, Mapping[str, float]], object] | None = None
    """A finished step and its metrics; step 0 is the validation before the first."""
    on_phase: Callable[[str], object] | None = None
    """Starting, Running, Restarting, Stopping, Succeeded, Stopped or Failed."""
    on_message: Callable[[str], object] | None = None
    """What `rljob run` would say."""
    limit_seconds: float | None = CALLBACK_SECONDS
    """For one call; None: no limit."""


class CallbackView:
    """A view of a run that calls functions."""

    def __init__(
        self, directory: RunDirectory, progress: RunCallbacks, weights: Mapping[str, float] | None = None
    ) -> None:
        """weights: of the job's rewards, by name."""
        self._tail = MetricsTail(directory.metrics)
        self._tail.poll()  # an earlier run's steps are not news
        self._warnings = StepWarnings(weights, self._tail.records)
        self._progress = progress
        self._phase = ""

    def note(self, note: RunNote) -> None:
        if note.phase != self._phase:
            self._phase = note.phase
            if self._progress.on_phase is not None:
                with self._call("on_phase"):
                    self._progress.on_phase(note.phase)

    def say(self, text: str) -> None:
        if self._progress.on_message is not None:
            with self._call("on_message"):
                self._progress.on_message(text)

    def tick(self) -> None:
        for record in self._tail.poll():
            if self._progress.on_step is not None:
                metrics = {name: value for name, value in record.items() if name != "step" and value is not None}
                with self._call("on_step"):
                    self._progress.on_step(record["step"], metrics)
            for line in self._warnings.lines(record):
                self.say(line)

    def _call(self, callback: str) -> AbstractContextManager[None]:
        return _limited(callback, self._progress.limit_seconds)


@contextmanager
def _limited(callback: str, seconds: float | None) -> Iterator[None]:
    """The run's note says which callback raised, or did not return in time. A signal to the thread that calls it
    interrupts it, also where it waits in the kernel; outside the main thread, which alone gets signals, none does."""
    try:
        if seconds is None or threading.current_thread() is not threading.main_thread():
            yield
        else:
            with _interrupted(seconds):
                yield
    except Exception as error:
        error.add_note(f"raised by the callback {callback}")
        raise


@contextmanager
def _interrupted(seconds: float) -> Iterator[None]:
    """Raises CallbackTimeout in the block after some seconds. A timer of the user's own, whose signal this is too, goes
    on."""
    is_late, has_ended = threading.Event(), threading.Event()
    old = signal.getsignal(signal.SIGALRM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if is_late.is_set():
            if not has_ended.is_set():
                raise CallbackTimeout(seconds)
        elif callable(old):
            old(number, frame)

    def ring() -> None:
        is_late.set()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    signal.signal(signal.SIGALRM, interrupt)
    try:
        timer.start()
        yield
    finally:
        has_ended.set()
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGALRM, old)
