"""The gang of an attempt: the pods of all hosts, begun, met, watched and ended together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.exit_codes import ExitCode, is_failure
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.launcher.pod_exit import Exit, first_cause, pod_exit_code
from rljob_worker.local.pods.pods import GANG_SETTLE_SECONDS, READY_SECONDS, AddressLists, GangEnd
from rljob_worker.local.services import Services
from rljob_worker.process.last_words import LastWords
from rljob_worker.supervision.hosts.connections import HostConnections, HostLost, HostRefused
from rljob_worker.supervision.hosts.messages import (
    Asked,
    AttemptEnded,
    BeginAttempt,
    Clear,
    Cleared,
    MetricsReady,
    OfHost,
    PeersReady,
    RunNews,
    Serving,
    StopWorkers,
)

if TYPE_CHECKING:
    from rljob_api.certificates import Issued
    from rljob_worker.supervision.one_host import OneHost

TICK_SECONDS = 0.25
SERVING_SECONDS = READY_SECONDS + 30.0
"""A host says itself which data buffer is late; after this long it is the host that says nothing."""
CLEAR_SECONDS = 45.0
"""Longer than a data buffer takes to give its memory back, and than the kernel takes to give up a silent machine."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Machines of a job, and how a supervisor speaks to them."""

    connections: HostConnections | OneHost
    pods: Sequence[Sequence[Host]]
    """By host: those of the plan that it runs."""
    called: Callable[[int], str]
    """What a host is called; nothing where there is one, as nobody asks which."""
    guests: Sequence[Host] = ()
    """Pods of the elastic group, which run on host 0."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the hosts are sent when it begins."""

    number: int
    resume: str
    mark: str
    """What the run directory holds, where it has to be the same for all."""
    services: Mapping[str, str]
    """Where those of the job answer, by name."""


class AttemptGang:
    """Pods of one attempt on all hosts: `start`, `poll` until it returns a GangEnd, `end`; `stop` asks for a
    checkpoint."""

    def __init__(self, hosts: Hosts, plan: Plan, attempt: Attempt, asked: dict[int, int]) -> None:
        """asked: how often each host was asked to stop, in all attempts."""
        self._known = hosts
        self._connections = hosts.connections
        self._plan = plan
        self._attempt = attempt
        self._asked = asked
        self._hosts = range(len(hosts.pods))
        self._serving: dict[int, AddressLists] = {}
        self._ended: dict[int, GangEnd] = {}
        self._exits: list[Exit] = []
        self._cleared: set[int] = set()
        self._lost: dict[int, str] = {}
        self._metrics_url = ""
        self._said: list[str] = []
        self._started = time.monotonic()
        self._settle_at: float | None = None
        self._end: GangEnd | None = None
        self._clear_until: float | None = None
        self.serving_seconds: float | None = None
        """How long data buffers took until all of them served; None until they do."""

    def hear_requests(self) -> int:
        """How often one of the machines was asked to stop, as `poll` heard."""
        return max(self._asked.values(), default=0)

    def start(self) -> None:
        """Have the data buffers of all hosts started."""
        addresses = {
            host: self._connections.address_of(host) for host in self._hosts if self._connections.is_here(host)
        }
        issued = self._issued(addresses) if self._plan.spec.data_buffer.tls else None
        self._started = time.monotonic()
        for host in self._hosts:
            if host not in addresses:
                self._lost[host] = "it hung up between two attempts"
                continue
            self._connections.send(host, self._begin(host, addresses[host], issued))

    def _begin(self, host: int, address: str, issued: Issued | None) -> BeginAttempt:
        attempt = self._attempt
        begin = BeginAttempt(attempt.number, attempt.resume, address, attempt.mark, services=dict(attempt.services))
        if issued is None:
            return begin
        pairs = {name: issued.hosts[name] for name in map(str, self._pods_of(host))}
        files = {name: (pair.certificate, pair.key) for name, pair in pairs.items()}
        return msgspec.structs.replace(begin, authority=issued.authority, pairs=files)

    def _pods_of(self, host: int) -> Sequence[Host]:
        return (*self._known.pods[host], *(self._known.guests if host == 0 else ()))

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
        self._connections.send_all(StopWorkers(self._attempt.number))

    def end(self) -> None:
        """Bounded: a host that does not answer is left to itself, and notices that host 0 is gone."""
        if self._clear_until is None:
            self._begin_to_clear()
        while not self._is_cleared():
            self._hear(TICK_SECONDS)

    def metrics_url(self) -> str:
        return self._metrics_url

    def news(self) -> list[str]:
        """What hosts have to tell since the last call."""
        said, self._said = self._said, []
        return said

    def _hear(self, seconds: float) -> None:
        for host, event in self._connections.pump(seconds):
            if isinstance(event, HostLost):
                self._lost[host] = event.why
            elif isinstance(event, Asked):
                self._asked[host] = event.times
            elif not isinstance(event, HostRefused) and getattr(event, "attempt", None) == self._attempt.number:
                self._note(host, event)

    def _note(self, host: int, event: OfHost) -> None:
        if isinstance(event, Serving):
            self._serving[host] = event.addresses
            if len(self._serving) == len(self._hosts):
                self.serving_seconds = time.monotonic() - self._started
                self._connections.send_all(PeersReady(self._attempt.number, self._address_book()))
        elif isinstance(event, MetricsReady):
            self._metrics_url = event.metrics_url
        elif isinstance(event, RunNews):
            self._said.append(event.words)
        elif isinstance(event, AttemptEnded):
            self._ended[host] = event.end
            self._exits.append(Exit(str(host), event.end.code, time.monotonic()))
        elif isinstance(event, Cleared):
            self._cleared.add(host)

    def _address_book(self) -> AddressLists:
        """Pods of a group are on its hosts in their order."""
        by_host: AddressLists = {}
        for host in self._hosts:
            for group, addresses in self._serving[host].items():
                by_host.setdefault(group, []).extend(addresses)
        return by_host

    def _verdict(self) -> GangEnd | None:
        """Pure except for the clock: whether the attempt has ended, and by whom."""
        now = time.monotonic()
        if self._lost:
            return GangEnd(int(ExitCode.RETRY))
        if self.serving_seconds is None and now - self._started > SERVING_SECONDS and not self._ended:
            host = next(host for host in self._hosts if host not in self._serving)
            words = LastWords(int(ExitCode.RETRY), cause=f"its launcher did not answer within {SERVING_SECONDS:.0f} s")
            return GangEnd(words.code, self._known.called(host), words, lost_machine=True)
        if self._settle_at is None and any(is_failure(one.code) for one in self._exits):
            self._settle_at = now + GANG_SETTLE_SECONDS
        if len(self._ended) < len(self._hosts) and (self._settle_at is None or now < self._settle_at):
            return None
        cause = first_cause(self._exits, GANG_SETTLE_SECONDS)
        return GangEnd(pod_exit_code(self._exits)) if cause is None else self._end_of(int(cause.name))

    def _end_of(self, host: int) -> GangEnd:
        end = self._ended[host]
        process = ", ".join(filter(None, (self._known.called(host), end.process)))
        return replace(end, process=process or ("this machine" if end.words else ""))

    def _begin_to_clear(self) -> None:
        self._clear_until = time.monotonic() + CLEAR_SECONDS
        self._connections.send_all(Clear(self._attempt.number))

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
        """A machine that is gone explains what its peers lost, and is gone for the next attempt in any case."""
        if not self._lost:
            return end
        host, why = min(self._lost.items())
        more = f", and {len(self._lost) - 1} more hosts" if len(self._lost) > 1 else ""
        if end.code != ExitCode.RETRY:
            return end
        words = LastWords(int(ExitCode.RETRY), cause=f"its launcher is gone ({why}){more}")
        return GangEnd(words.code, self._known.called(host), words, lost_machine=True)

    def _issued(self, addresses: Mapping[int, str]) -> Issued:
        from rljob_api.certificates import issue  # most jobs have no use for its 50 ms

        hosts = {str(pod): (address,) for host, address in addresses.items() for pod in self._pods_of(host)}
        return issue(self._plan.job, self._attempt.number, hosts, datetime.now(UTC))


class GangFactory:
    """Makes the gang of every attempt, of the same hosts."""

    def __init__(self, hosts: Hosts, plan: Plan, mark: str, services: Services) -> None:
        """services: those of the job, which may be none; they run next to the gangs of all attempts."""
        self._hosts = hosts
        self._plan = plan
        self._mark = mark
        self._asked: dict[int, int] = {}
        self.services = services

    def hear_requests(self) -> int:
        """How often one of the machines was asked to stop, while there is no gang to listen. A host that hangs up
        meanwhile is missed when the next gang starts."""
        for host, event in self._hosts.connections.pump(0.0):
            if isinstance(event, Asked):
                self._asked[host] = event.times
        return max(self._asked.values(), default=0)

    def gang(self, attempt: int, resume: str) -> AttemptGang:
        """resume: what workers start from: auto, never, or a step."""
        begun = Attempt(attempt, resume, self._mark, self.services.urls)
        return AttemptGang(self._hosts, self._plan, begun, self._asked)
