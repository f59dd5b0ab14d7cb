"""Host 0's gang: the pods of all hosts, begun, met, watched and ended together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.hosts.hub import Lost, Refused
from rljob_worker.hosts.meeting import TICK_SECONDS, Meeting
from rljob_worker.hosts.messages import (
    Asked,
    Begin,
    Book,
    Clear,
    Cleared,
    Ended,
    OfHost,
    Running,
    Serving,
    Stop,
)
from rljob_worker.last_words import LastWords
from rljob_worker.launcher.verdict import Exit, first_cause, gang_code, is_failure
from rljob_worker.local.pods.pods import GANG_SETTLE_SECONDS, READY_SECONDS, AddressLists, GangEnd
from rljob_worker.local.services import Services

SERVING_SECONDS = READY_SECONDS + 30.0
"""A host says itself which data buffer is late; after this long it is the host that says nothing."""
CLEAR_SECONDS = 45.0
"""Longer than a data buffer takes to give its memory back, and than the kernel takes to give up a silent machine."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the hosts are told when it begins."""

    number: int
    resume: str
    mark: str
    """What the run directory holds, where it has to be the same for all."""
    services: Mapping[str, str]
    """Where those of the job answer, by name."""


class WideGang:
    """Pods of one attempt on all hosts: what a supervisor sees of them."""

    def __init__(self, meeting: Meeting, plan: Plan, attempt: Attempt, asked: dict[int, int]) -> None:
        """asked: how often each host was asked to stop, in all attempts."""
        self._meeting = meeting
        self._hub = meeting.hub
        self._plan = plan
        self._tree = JobTree.of(plan)
        self._attempt = attempt
        self._asked = asked
        self._hosts = range(meeting.seat.num_hosts)
        self._serving: dict[int, str] = {}
        self._ended: dict[int, Ended] = {}
        self._exits: list[Exit] = []
        self._cleared: set[int] = set()
        self._lost: dict[int, str] = {}
        self._metrics_url = ""
        self._started = time.monotonic()
        self._settle_at: float | None = None
        self._end: GangEnd | None = None
        self._clear_until: float | None = None
        self.serving_seconds: float | None = None

    def hear_requests(self) -> int:
        """`poll` listens for them."""
        return max(self._asked.values(), default=0)

    def start(self) -> None:
        """Have the data buffers of all hosts started."""
        addresses = {host: self._hub.address_of(host) for host in self._hosts if self._hub.is_here(host)}
        issued = self._issued(addresses) if self._plan.spec.data_buffer.tls else {}
        self._started = time.monotonic()
        for host in self._hosts:
            if host not in addresses:
                self._lost[host] = "it hung up between two attempts"
                continue
            self._hub.send(host, self._begin(addresses[host], issued.get(host, (b"", b"", b""))))

    def _begin(self, address: str, issued: tuple[bytes, bytes, bytes]) -> Begin:
        attempt = self._attempt
        authority, certificate, key = issued
        return Begin(
            attempt.number, attempt.resume, address, attempt.mark, authority, certificate, key, dict(attempt.services)
        )

    def poll(self) -> GangEnd | None:
        """The end, once nothing is left of the attempt anywhere and every machine that is gone is known."""
        self._hear(0.0)
        if self._end is None:
            self._end = self._verdict()
            if self._end is None:
                return None
            self._begin_to_clear()
        if not self._is_cleared():
            return None
        return self._with_lost(self._end)

    def stop(self) -> None:
        self._hub.send_all(Stop(self._attempt.number))

    def end(self) -> None:
        """Bounded: a host that does not answer is left to itself, and notices that host 0 is gone."""
        if self._clear_until is None:
            self._begin_to_clear()
        while not self._is_cleared():
            self._hear(TICK_SECONDS)

    def metrics_url(self) -> str:
        return self._metrics_url

    def _hear(self, seconds: float) -> None:
        for host, event in self._hub.pump(seconds):
            if isinstance(event, Lost):
                self._lost[host] = event.why
            elif isinstance(event, Asked):
                self._asked[host] = event.times
            elif not isinstance(event, Refused) and getattr(event, "attempt", None) == self._attempt.number:
                self._note(host, event)

    def _note(self, host: int, event: OfHost) -> None:
        if isinstance(event, Serving):
            self._serving[host] = event.address
            if len(self._serving) == len(self._hosts):
                self.serving_seconds = time.monotonic() - self._started
                self._hub.send_all(Book(self._attempt.number, self._book()))
        elif isinstance(event, Running):
            self._metrics_url = event.metrics_url
        elif isinstance(event, Ended):
            self._ended[host] = event
            self._exits.append(Exit(str(host), event.code, time.monotonic()))
        elif isinstance(event, Cleared):
            self._cleared.add(host)

    def _book(self) -> AddressLists:
        return {
            group.name: [self._serving[position] for position in self._tree.span(group.name)]
            for group in self._plan.groups
        }

    def _verdict(self) -> GangEnd | None:
        """Pure but for the clock: whether the attempt has ended, and by whom."""
        now = time.monotonic()
        if self._lost:
            return GangEnd(int(ExitCode.RETRY))
        if self.serving_seconds is None and now - self._started > SERVING_SECONDS and not self._ended:
            return self._silent(host for host in self._hosts if host not in self._serving)
        if self._settle_at is None and any(is_failure(one.code) for one in self._exits):
            self._settle_at = now + GANG_SETTLE_SECONDS
        if len(self._ended) < len(self._hosts) and (self._settle_at is None or now < self._settle_at):
            return None
        cause = first_cause(self._exits, GANG_SETTLE_SECONDS)
        return GangEnd(gang_code(self._exits)) if cause is None else self._end_of(int(cause.name))

    def _end_of(self, host: int) -> GangEnd:
        ended = self._ended[host]
        words = LastWords(ended.code, ended.step, ended.checkpoint, ended.cause)
        process = f"{self._meeting.called(host)}, {ended.process}" if ended.process else self._meeting.called(host)
        return GangEnd(ended.code, process, words, Path(ended.log) if ended.log else None)

    def _silent(self, hosts: Iterable[int]) -> GangEnd:
        host = next(iter(hosts))
        words = LastWords(int(ExitCode.RETRY), cause=f"its launcher did not answer within {SERVING_SECONDS:.0f} s")
        return GangEnd(words.code, self._meeting.called(host), words, lost_machine=True)

    def _begin_to_clear(self) -> None:
        self._clear_until = time.monotonic() + CLEAR_SECONDS
        self._hub.send_all(Clear(self._attempt.number))

    def _is_cleared(self) -> bool:
        assert self._clear_until is not None, "asked after it began"
        gone = self._cleared | self._lost.keys()
        if time.monotonic() > self._clear_until:
            for host in self._hosts:
                if host not in gone:
                    self._lost[host] = f"its launcher did not answer within {CLEAR_SECONDS:.0f} s"
            return True
        return len(gone) == len(self._hosts)

    def _with_lost(self, end: GangEnd) -> GangEnd:
        """A machine that is gone explains what its peers lost, and is gone for the next attempt whatever ended this."""
        if not self._lost:
            return end
        host, why = min(self._lost.items())
        more = f", and {len(self._lost) - 1} more hosts" if len(self._lost) > 1 else ""
        if end.code != ExitCode.RETRY:
            return end
        words = LastWords(int(ExitCode.RETRY), cause=f"its launcher is gone ({why}){more}")
        return GangEnd(words.code, self._meeting.called(host), words, lost_machine=True)

    def _issued(self, addresses: dict[int, str]) -> dict[int, tuple[bytes, bytes, bytes]]:
        """Authority, certificate and key of each host's pod."""
        from rljob_api.certificates import issue  # most jobs have no use for its 50 ms

        names = {host: str(self._pod(host)) for host in addresses}
        hosts = {names[host]: (address,) for host, address in addresses.items()}
        issued = issue(self._plan.job, self._attempt.number, hosts, datetime.now(UTC))
        pairs = {host: issued.hosts[name] for host, name in names.items()}
        return {host: (issued.authority, pair.certificate, pair.key) for host, pair in pairs.items()}

    def _pod(self, host: int) -> Host:
        return self._tree.host(host)


class WideGangs:
    """Makes the gang of every attempt, of the same hosts."""

    def __init__(self, meeting: Meeting, plan: Plan, mark: str, services: Services) -> None:
        self._meeting = meeting
        self._plan = plan
        self._mark = mark
        self._asked: dict[int, int] = {}
        self.services = services

    def hear_requests(self) -> int:
        """A host that hangs up meanwhile is missed when the next gang starts."""
        for host, event in self._meeting.hub.pump(0.0):
            if isinstance(event, Asked):
                self._asked[host] = event.times
        return max(self._asked.values(), default=0)

    def gang(self, attempt: int, resume: str) -> WideGang:
        begun = Attempt(attempt, resume, self._mark, self.services.urls)
        return WideGang(self._meeting, self._plan, begun, self._asked)
