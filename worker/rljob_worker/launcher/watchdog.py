"""The launcher's main loop, a watchdog over its workers: signals, deaths and metric lines in, one exit code out."""

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence

from rljob_api.vocabulary.exit_codes import ExitCode, is_failure
from rljob_worker.launcher.children import WorkerProcess
from rljob_worker.launcher.pod_exit import SETTLE_SECONDS, Exit, pod_exit_code
from rljob_worker.launcher.pod_state import BEAT_SECONDS, PodState
from rljob_worker.process.child import exit_code
from rljob_worker.process.lifeline import collect_orphans
from rljob_worker.process.signal_pipe import SignalPipe

FORWARDED = (signal.SIGTERM, signal.SIGINT)
HEARD = (*FORWARDED, signal.SIGHUP, signal.SIGCHLD)
INTERRUPT_GRACE_SECONDS = 2.0
KILL_SECONDS = 0.02


class WorkerWatchdog:
    """Waits for the workers of one pod to end, and ends the rest when one fails."""

    def __init__(
        self, workers: Sequence[WorkerProcess], signals: SignalPipe, pod_state: PodState, lifeline: int | None
    ) -> None:
        """signals: has heard what came since before the first worker was started."""
        self.exits: list[Exit] = []
        self._workers = workers
        self._signals = signals
        self._pod_state = pod_state
        self._torn = {worker.pipe: b"" for worker in workers}
        self._kill_at: float | None = None
        self._forced_code = 0
        self._lifeline = lifeline

    def until_the_end(self) -> int:
        """Run until no worker is left; returns the pod's exit code."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals.fd, selectors.EVENT_READ, self._take_signals)
            if self._lifeline is not None:
                selector.register(self._lifeline, selectors.EVENT_READ, self._on_orphaned)
            for worker in self._workers:
                selector.register(worker.pipe, selectors.EVENT_READ, self._take_lines(selector, worker))
            self._collect()
            while self._running():
                for key, _ in selector.select(self._grace_seconds()):
                    key.data()
                self._pod_state.beat()
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    self._kill(self._running())
                self._collect()
            self._drain()
        self._kill(self._workers)  # what they left
        return pod_exit_code(self.exits) or self._forced_code

    def _running(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.running]

    def _grace_seconds(self) -> float:
        if self._kill_at is None:
            return BEAT_SECONDS
        return min(BEAT_SECONDS, max(KILL_SECONDS, self._kill_at - time.monotonic()))

    def _take_signals(self) -> None:
        for number in self._signals.read():
            if number == signal.SIGHUP:
                self._on_orphaned()
            elif number in FORWARDED:
                self._forward(signal.Signals(number))

    def _forward(self, signum: signal.Signals) -> None:
        for worker in self._running():
            worker.send_signal(signum)
        if signum == signal.SIGINT:
            self._forced_code = int(ExitCode.INTERRUPTED)
            self._kill_within(INTERRUPT_GRACE_SECONDS)

    def _on_orphaned(self) -> None:
        """The supervisor is gone: nothing here has a reader any more."""
        self._forced_code = exit_code(-signal.SIGKILL)
        self._kill_at = 0.0

    def _take_lines(self, selector: selectors.BaseSelector, worker: WorkerProcess) -> Callable[[], None]:
        def take() -> None:
            with contextlib.suppress(BlockingIOError):
                if not self._record_lines(worker):
                    selector.unregister(worker.pipe)

        return take

    def _record_lines(self, worker: WorkerProcess) -> bool:
        """Post the complete lines that are there; False at the end of the pipe, BlockingIOError when it is empty."""
        data = os.read(worker.pipe, 1 << 16)
        *lines, self._torn[worker.pipe] = (self._torn[worker.pipe] + data).split(b"\n")
        for line in lines:
            self._pod_state.record(worker.rank, line)
        return bool(data)

    def _drain(self) -> None:
        """Take what the workers wrote just before they ended."""
        for worker in self._workers:
            with contextlib.suppress(BlockingIOError):
                while self._record_lines(worker):
                    pass
            os.close(worker.pipe)

    def _collect(self) -> None:
        for worker in self._workers:
            if worker.has_ended():
                self._on_exit(worker)
        collect_orphans({worker.pid for worker in self._running() if worker.pid is not None})

    def _on_exit(self, worker: WorkerProcess) -> None:
        assert worker.returncode is not None
        self._pod_state.num_alive = len(self._running())
        code = exit_code(worker.returncode)
        # a worker we killed says nothing about the cause
        if self._kill_at is None or time.monotonic() < self._kill_at:
            self.exits.append(Exit(worker.name, code, time.monotonic()))
        if is_failure(code):
            self._pod_state.fail(f"worker {worker.name} ended with exit code {code}")
            self._kill_within(SETTLE_SECONDS)

    def _kill_within(self, seconds: float) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + seconds

    def _kill(self, workers: Sequence[WorkerProcess]) -> None:
        for worker in workers:
            worker.signal_group(signal.SIGKILL)
