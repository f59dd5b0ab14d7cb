"""What a host does from the first word of host 0 to the last: its pod runs attempt by attempt, as it is told."""

from __future__ import annotations

import contextlib
import select
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.errors import InvalidJob, RLJobError
from rljob_worker.hosts.calling import Connection
from rljob_worker.hosts.gang import CLEAR_SECONDS, SERVING_SECONDS
from rljob_worker.hosts.meeting import LATECOMERS_SECONDS
from rljob_worker.hosts.messages import (
    Asked,
    Begin,
    Book,
    Clear,
    Cleared,
    Ended,
    Finish,
    OfHost0,
    Running,
    Serving,
    Stop,
)
from rljob_worker.local.gang import rooted
from rljob_worker.local.pods.environment import RunContext, spills_here
from rljob_worker.local.pods.interface import interface_of
from rljob_worker.local.pods.pods import Commands, GangEnd, Pods
from rljob_worker.local.restart import stop_seconds
from rljob_worker.local.services import TOKEN_FILE, most_start_seconds, worker_variables
from rljob_worker.process.signal_pipe import SignalPipe
from rljob_worker.process.stop_requests import REQUESTS
from rljob_worker.rundir.directory import RunDirectory

TICK_SECONDS = 0.25
MARK_SECONDS = 35.0
"""A file system over a network may show a new file half a minute late."""
MAX_REQUESTS = 3
"""So many requests to stop are obeyed by a host alone."""
MARK_FILE = "launch"
"""In the run directory: what tells hosts that they see the same one."""
ANSWER_MARGIN_SECONDS = 60.0


@dataclass(slots=True)
class _Attempt:
    """What host 0 has been told of one, and has said of it."""

    number: int
    has_served: bool = False
    has_met: bool = False
    told_of_metrics: bool = False
    has_ended: bool = False


class Duty:
    """Of one host, over one connection."""

    def __init__(
        self,
        connection: Connection,
        context: RunContext | None,
        commands: Commands,
        stack: contextlib.ExitStack,
        seconds: float,
    ) -> None:
        self._connection = connection
        self._context = context
        self._commands = commands
        self._stack = stack
        self._is_rooted = False
        self._attempt = _Attempt(0)
        self._pods: Pods | None = None
        self._num_requests = 0
        self._between_seconds = seconds + LATECOMERS_SECONDS
        if context is not None:
            self._between_seconds += most_start_seconds(context.plan)
        self._await("let nobody begin", self._between_seconds)

    def until_the_end(self, signals: SignalPipe) -> Finish:
        """How this host is to end, and what is said of it."""
        try:
            while True:
                self._wait(signals)
                for word in self._connection.words():
                    if isinstance(word, Finish):
                        return word
                    self._obey(word)
                if self._connection.ended is not None:
                    return Finish(int(ExitCode.RETRY), f"host 0 is gone: {self._connection.ended}")
                self._heed(signals)
                if self._num_requests >= MAX_REQUESTS:
                    return Finish(int(ExitCode.INTERRUPTED), "asked to stop again and again")
                if self._pods is not None:
                    self._look(self._pods)
                if self._late_at is not None and time.monotonic() > self._late_at:
                    return Finish(int(ExitCode.RETRY), f"host 0 {self._late_words}")
        finally:
            self._clear()

    def _wait(self, signals: SignalPipe) -> None:
        reads: list[Connection | int] = [self._connection, signals.fd]
        writes = [self._connection] if self._connection.has_to_write else []
        _, writable, _ = select.select(reads, writes, [], TICK_SECONDS)
        if writable:
            self._connection.flush()

    def _await(self, what: str, seconds: float) -> None:
        """Host 0 has to speak until then."""
        self._late_at: float | None = time.monotonic() + seconds
        self._late_words = f"{what} within {seconds:.0f} s"

    def _heed(self, signals: SignalPipe) -> None:
        num_new = sum(number in REQUESTS for number in signals.read())
        if num_new:
            self._num_requests += num_new
            self._connection.send(Asked(self._num_requests))

    def _obey(self, word: OfHost0) -> None:
        if isinstance(word, Begin):
            self._begin(word)
        elif isinstance(word, Book) and self._pods is not None and not self._attempt.has_ended:
            self._late_at = None
            self._attempt.has_met = True
            self._pods.meet(word.book)
        elif isinstance(word, Stop) and self._pods is not None:
            self._pods.stop()
        elif isinstance(word, Clear):
            self._clear()
            self._connection.send(Cleared(word.attempt))
            self._await("began no further attempt", self._between_seconds)

    def _begin(self, begin: Begin) -> None:
        assert self._context is not None, "host 0 begins with nobody who has said what is wrong with it"
        self._attempt = _Attempt(begin.attempt)
        self._await("named no addresses", SERVING_SECONDS + ANSWER_MARGIN_SECONDS)
        try:
            context = self._rooted(self._context, begin)
            if begin.key:
                _write_certificate(context, begin)
            self._pods = Pods(context, self._commands)
            self._pods.start()
        except RLJobError as error:
            self._tell_end(GangEnd(int(error.exit_code)), str(error))

    def _rooted(self, context: RunContext, begin: Begin) -> RunContext:
        """Of this attempt. The first one starts what workers of all are forked from."""
        check_mark(context.run_dir, begin.mark)
        if not self._is_rooted:
            if spills_here(context.plan):
                RunDirectory(context.run_dir).spill.mkdir(parents=True, exist_ok=True)
            self._context = context = self._stack.enter_context(rooted(context, self._commands))
            self._is_rooted = True
        address = begin.address
        return replace(
            context,
            attempt=begin.attempt,
            resume=begin.resume,
            address=address,
            interface=interface_of(address),
            services=worker_variables(begin.services, context.scratch / TOKEN_FILE),
        )

    def _look(self, pods: Pods) -> None:
        if self._attempt.has_ended:
            return
        end = pods.poll()
        if end is not None:
            self._tell_end(end, end.words.cause if end.words else "")
            return
        book = pods.addresses()
        if book is not None and not self._attempt.has_served:
            self._attempt.has_served = True
            ((address,),) = book.values()
            self._connection.send(Serving(self._attempt.number, address))
        if self._attempt.has_met and not self._attempt.told_of_metrics and (url := pods.metrics_url()):
            self._attempt.told_of_metrics = True
            self._connection.send(Running(self._attempt.number, url))

    def _tell_end(self, end: GangEnd, cause: str) -> None:
        assert self._context is not None
        self._attempt.has_ended = True
        step, checkpoint = (end.words.step, end.words.checkpoint) if end.words else (0, None)
        log = str(end.log or "")
        ended = Ended(self._attempt.number, end.code, end.process, cause, step, checkpoint, log)
        self._connection.send(ended)
        self._await("said nothing after this host's end", stop_seconds(self._context.plan) + CLEAR_SECONDS)

    def _clear(self) -> None:
        if self._pods is not None:
            self._pods.end()
            self._pods = None


def check_mark(run_dir: Path, mark: str, patience_seconds: float = MARK_SECONDS) -> None:
    """Raises InvalidJob where this is not the directory that host 0 has marked; an empty mark says that it need not
    be."""
    if not mark:
        return
    end = time.monotonic() + patience_seconds
    while _text_of(run_dir / MARK_FILE) != mark:
        if time.monotonic() > end:
            raise InvalidJob(
                f"{run_dir} is not the run directory of host 0: checkpoints of all hosts come together there; put it "
                "on a file system that all of them share (--runs-dir), or checkpoints into spec.storage.objectStore"
            )
        time.sleep(0.5)


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _write_certificate(context: RunContext, begin: Begin) -> None:
    from rljob_api.certificates import Issued, KeyPair  # most jobs have no use for its 50 ms
    from rljob_worker.local.pods.certificates import write_issued

    (pod,) = context.here
    pair = KeyPair(begin.certificate, begin.key)
    write_issued(Issued(begin.authority, {str(pod): pair}), context.certificates)
