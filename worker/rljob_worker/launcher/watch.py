"""The launcher's main loop: signals, deaths and metric lines in, one exit code out."""

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.forkserver.client import ForkServer
from rljob_worker.launcher.board import BEAT_SECONDS, Board
from rljob_worker.launcher.children import Child
from rljob_worker.launcher.verdict import SETTLE_SECONDS, Exit, gang_code, is_failure
from rljob_worker.process.child import exit_code
from rljob_worker.process.lifeline import collect_children
from rljob_worker.process.signal_pipe import SignalPipe

FORWARDED = (signal.SIGTERM, signal.SIGINT)
INTERRUPT_GRACE_SECONDS = 2.0
KILL_PATIENCE_SECONDS = 0.02


class Watch:
    """Waits for the workers of one pod to end, and ends the rest when one fails."""

    def __init__(self, children: Sequence[Child], server: ForkServer, board: Board, lifeline: int | None) -> None:
        self.exits: list[Exit] = []
        self._children = {child.name: child for child in children}
        self._server = server
        self._board = board
        self._torn = {child.pipe: b"" for child in children}
        self._kill_at: float | None = None
        self._forced_code = 0
        self._lifeline = lifeline

    def until_the_end(self) -> int:
        """Run until no worker is left; returns the pod's exit code."""
        signals = SignalPipe((*FORWARDED, signal.SIGHUP, signal.SIGCHLD))
        with signals, selectors.DefaultSelector() as selector:
            selector.register(signals.fd, selectors.EVENT_READ, self._take_signals(signals))
            selector.register(self._server, selectors.EVENT_READ, self._hear_of_workers)
            if self._lifeline is not None:
                selector.register(self._lifeline, selectors.EVENT_READ, self._on_orphaned)
            for child in self._children.values():
                selector.register(child.pipe, selectors.EVENT_READ, self._take_lines(selector, child))
            while self._running():
                for key, _ in selector.select(self._patience_seconds()):
                    key.data()
                self._board.beat()
                self._kill_the_late()
                collect_children()  # orphans, which process 1 of a container inherits
            self._drain()
        self._kill_leftovers()
        return gang_code(self.exits) or self._forced_code

    def _running(self) -> list[Child]:
        return [child for child in self._children.values() if child.running]

    def _patience_seconds(self) -> float:
        if self._kill_at is None:
            return BEAT_SECONDS
        return min(BEAT_SECONDS, max(KILL_PATIENCE_SECONDS, self._kill_at - time.monotonic()))

    def _take_signals(self, signals: SignalPipe) -> Callable[[], None]:
        def take() -> None:
            for number in signals.read():
                if number == signal.SIGHUP:
                    self._on_orphaned()
                elif number in FORWARDED:
                    self._forward(signal.Signals(number))

        return take

    def _forward(self, signum: signal.Signals) -> None:
        for child in self._running():
            child.send_signal(signum)
        if signum == signal.SIGINT:
            self._forced_code = int(ExitCode.INTERRUPTED)
            self._kill_within(INTERRUPT_GRACE_SECONDS)

    def _on_orphaned(self) -> None:
        """The supervisor is gone: nothing here has a reader any more."""
        self._forced_code = exit_code(-signal.SIGKILL)
        self._kill_at = 0.0

    def _take_lines(self, selector: selectors.BaseSelector, child: Child) -> Callable[[], None]:
        def take() -> None:
            with contextlib.suppress(BlockingIOError):
                if not self._post_lines(child):
                    selector.unregister(child.pipe)

        return take

    def _post_lines(self, child: Child) -> bool:
        """Post the complete lines that are there; False at the end of the pipe, BlockingIOError when it is empty."""
        data = os.read(child.pipe, 1 << 16)
        *lines, self._torn[child.pipe] = (self._torn[child.pipe] + data).split(b"\n")
        for line in lines:
            self._board.post(child.rank, line)
        return bool(data)

    def _drain(self) -> None:
        """Take what the workers wrote just before they ended."""
        for child in self._children.values():
            with contextlib.suppress(BlockingIOError):
                while self._post_lines(child):
                    pass
            os.close(child.pipe)

    def _hear_of_workers(self) -> None:
        """One message of the fork server; its end is that of all its workers."""
        message = self._server.receive()
        if message is None:
            for child in self._running():
                self._on_exit(child, -signal.SIGKILL)
        elif "forked" in message:
            self._children[message["forked"]].begun(message["pid"])
        else:
            self._on_exit(self._children[message["ended"]], message["status"])

    def _on_exit(self, child: Child, returncode: int) -> None:
        child.returncode = returncode
        self._board.num_alive = len(self._running())
        code = exit_code(returncode)
        # a worker we killed says nothing about the cause
        if self._kill_at is None or time.monotonic() < self._kill_at:
            self.exits.append(Exit(child.name, code, time.monotonic()))
        if is_failure(code):
            self._board.fail(f"worker {child.name} ended with exit code {code}")
            self._kill_within(SETTLE_SECONDS)

    def _kill_within(self, seconds: float) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + seconds

    def _kill_the_late(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            for child in self._running():
                child.signal_group(signal.SIGKILL)
            if any(child.pid is None for child in self._running()):
                self._server.kill()  # it may be importing for a while yet

    def _kill_leftovers(self) -> None:
        for child in self._children.values():
            child.signal_group(signal.SIGKILL)
