"""What a host does from the first message of host 0 to the last: its pod runs attempt by attempt, on command."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from rljob_worker.errors import InvalidJob, RLJobError
from rljob_worker.local.pods.environment import RunContext, spills_to_run_directory
from rljob_worker.local.pods.guests import Guests
from rljob_worker.local.pods.interface import interface_of
from rljob_worker.local.pods.pods import Commands, GangEnd, Pods
from rljob_worker.local.services import TOKEN_FILE, worker_variables
from rljob_worker.process.last_words import LastWords
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.supervision.gang import CLEAR_SECONDS, SERVING_SECONDS
from rljob_worker.supervision.hosts.messages import (
    AttemptEnded,
    BeginAttempt,
    Clear,
    Cleared,
    MetricsReady,
    OfHost,
    OfHost0,
    PeersReady,
    RunNews,
    Serving,
    StopWorkers,
)
from rljob_worker.supervision.restart import stop_seconds

MARK_SECONDS = 35.0
"""A file system over a network may show a new file half a minute late."""
MARK_FILE = "launch"
"""In the run directory: what tells hosts that they see the same one."""
ANSWER_MARGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Awaited:
    """What a host waits for."""

    what: str
    seconds: float | None = None
    """At most; None: as long as hosts may come and services start."""
    since: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _Attempt:
    """What was reported to host 0 of an attempt, and what it has said of it."""

    number: int
    has_served: bool = False
    has_met: bool = False
    has_reported_metrics: bool = False
    has_ended: bool = False


class HostSession:
    """What one host does on command: `obey` what host 0 says, and tell it the `news`."""

    def __init__(self, context: RunContext | None, commands: Commands) -> None:
        self._context = context
        self._commands = commands
        self._attempt = _Attempt(0)
        self._pods: Pods | None = None
        self._guests: Guests | None = None
        self._news: list[OfHost] = []
        self.awaits: Awaited | None = Awaited("let nobody begin")
        """What host 0 has to do next."""

    def news(self) -> list[OfHost]:
        """What has happened since the last call."""
        if self._pods is not None:
            self._look(self._pods)
        news, self._news = self._news, []
        return news

    def obey(self, message: OfHost0) -> None:
        if isinstance(message, BeginAttempt):
            self._begin(message)
        elif isinstance(message, PeersReady) and self._pods is not None and not self._attempt.has_ended:
            self.awaits = None
            self._attempt.has_met = True
            guests = {} if self._guests is None else self._guests.addresses()
            self._pods.meet({**message.address_book, **guests})
            if self._guests is not None:
                self._guests.begin(message.address_book)
        elif isinstance(message, StopWorkers) and self._pods is not None:
            self._pods.stop()
        elif isinstance(message, Clear):
            self.clear()
            self._news.append(Cleared(message.attempt))
            self.awaits = Awaited("began no further attempt")

    def clear(self) -> None:
        """End what is left of an attempt."""
        if self._guests is not None:
            self._guests.end()
            self._guests = None
        if self._pods is not None:
            self._pods.end()
            self._pods = None

    def _begin(self, begin: BeginAttempt) -> None:
        assert self._context is not None, "host 0 begins with nobody who has said what is wrong with it"
        self._attempt = _Attempt(begin.attempt)
        self.awaits = Awaited("named no addresses", SERVING_SECONDS + ANSWER_MARGIN_SECONDS)
        try:
            context = self._rooted(self._context, begin)
            if begin.pairs:
                _write_certificates(context, begin)
            self._pods = Pods(context, self._commands)
            self._guests = Guests(context, self._commands) if context.guests else None
            self._pods.start()
        except RLJobError as error:
            code = int(error.exit_code)
            self._tell_end(GangEnd(code, words=LastWords(code, cause=str(error))))

    def _rooted(self, context: RunContext, begin: BeginAttempt) -> RunContext:
        """The context of this attempt."""
        check_mark(context.run_dir, begin.mark)
        if spills_to_run_directory(context.plan):
            RunDirectory(context.run_dir).spill.mkdir(parents=True, exist_ok=True)
        return replace(
            context,
            attempt=begin.attempt,
            resume=begin.resume,
            address=begin.address,
            interface=interface_of(begin.address),
            services=worker_variables(begin.services, context.scratch / TOKEN_FILE),
        )

    def _look(self, pods: Pods) -> None:
        if self._attempt.has_ended:
            return
        end = pods.poll()
        if end is None and self._guests is not None:
            end = self._guests.poll()
            self._news += (RunNews(self._attempt.number, words) for words in self._guests.news())
        if end is not None:
            self._tell_end(end)
            return
        addresses = pods.addresses()
        if addresses is not None and not self._attempt.has_served:
            self._attempt.has_served = True
            self._news.append(Serving(self._attempt.number, addresses))
        if self._attempt.has_met and not self._attempt.has_reported_metrics and (url := pods.metrics_url()):
            self._attempt.has_reported_metrics = True
            self._news.append(MetricsReady(self._attempt.number, url))

    def _tell_end(self, end: GangEnd) -> None:
        assert self._context is not None
        self._attempt.has_ended = True
        self._news.append(AttemptEnded(self._attempt.number, end))
        self.awaits = Awaited("said nothing after this host's end", stop_seconds(self._context.plan) + CLEAR_SECONDS)


def check_mark(run_dir: Path, mark: str, timeout_seconds: float = MARK_SECONDS) -> None:
    """Raises InvalidJob where this is not the directory that host 0 has marked; an empty mark says that it need not
    be."""
    if not mark:
        return
    end = time.monotonic() + timeout_seconds
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


def _write_certificates(context: RunContext, begin: BeginAttempt) -> None:
    from rljob_api.certificates import Issued, KeyPair  # most jobs have no use for its 50 ms
    from rljob_worker.local.pods.certificates import write_issued

    pairs = {pod: KeyPair(certificate, key) for pod, (certificate, key) in begin.pairs.items()}
    write_issued(Issued(begin.authority, pairs), context.certificates)
