"""Rendezvous at host 0: it waits until all hosts are connected, and dismisses them at the end."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.errors import DeadlineExceeded, InvalidJob
from rljob_worker.process.open_files import allow_files
from rljob_worker.process.signal_pipe import SignalPipe
from rljob_worker.supervision.hosts.compatibility import Expected, absent_hosts, flaw_lines, flaws_of
from rljob_worker.supervision.hosts.connections import BACKLOG, MAX_UNKNOWN, HostConnections, HostLost, HostRefused
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.hosts.messages import Asked, Finish, Hello

SETTLE_SECONDS = 3.0
"""After the first host that cannot take part others are still heard, so that all are notified at once."""
REPORT_EVERY_SECONDS = 15.0
TICK_SECONDS = 0.25
LATECOMERS_SECONDS = 60.0
"""How long, at most, those who come to a job that ended before the hosts met are still notified why."""
GOODBYE_SECONDS = 10.0


class Stopped(Exception):
    """A host was asked to stop while others were waited for."""


class Rendezvous:
    """Rendezvous of the hosts of one launch, at host 0. `gather` once; `dismiss` at the end in any case."""

    def __init__(
        self,
        membership: Membership,
        connections: HostConnections,
        seconds: float,
        tell: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        """seconds: how long hosts wait for each other."""
        self.membership = membership
        self.connections = connections
        self._seconds = seconds
        self.names: dict[int, str] = {}
        """What the machines call themselves, by host."""
        self._tell = tell
        self._clock = clock
        self.dismissed: set[int] = set()
        """Hosts that were asked to leave."""
        self._has_begun = False

    def called(self, host: int) -> str:
        """`host 3 (gpu04)`."""
        return f"host {host} ({self.names[host]})" if host in self.names else self.membership.called(host)

    def gather(self, expected: Expected, signals: SignalPipe) -> None:
        """Until all hosts are here and can run together. Raises InvalidJob with all flaws that were heard of,
        DeadlineExceeded with who is missing, Stopped by one of the signals or on a host."""
        self._has_begun = True
        start = reported_at = self._clock()
        flaws: list[str] = []
        settled: float | None = None
        while absent := absent_hosts(self.membership, self.names):
            now = self._clock()
            if settled is not None and now >= settled:
                break
            if now - start > self._seconds:
                raise DeadlineExceeded(
                    f"{absent} did not come to {self.membership.address}:{self.membership.port} within "
                    f"{self._seconds:.0f} s; see the output of their launchers, whether they were started, and whether "
                    "they reach this port"
                )
            if now - reported_at > REPORT_EVERY_SECONDS:
                reported_at = now
                self._tell(f"waiting for {absent}")
            if signals.read():
                raise Stopped("host 0 was asked to stop")
            flaws += self._news(expected)
            if flaws and settled is None:
                settled = self._clock() + SETTLE_SECONDS
        if flaws:
            raise InvalidJob(flaw_lines(flaws))

    def _news(self, expected: Expected) -> list[str]:
        flaws: list[str] = []
        for host, event in self.connections.pump(TICK_SECONDS):
            if isinstance(event, Hello):
                self.names[host] = event.name
                flaws += flaws_of(event, expected)
            elif isinstance(event, HostRefused):
                flaws.append(event.why)
            elif isinstance(event, HostLost):
                self.names.pop(host, None)  # it may come again
            elif isinstance(event, Asked):
                raise Stopped(f"{self.called(host)} was asked to stop")
        return flaws

    def dismiss(self, code: int, words: str) -> None:
        """Have everybody leave with this code: who is here, and of a job that cannot run who still comes."""
        waits = not self._has_begun and code != ExitCode.INTERRUPTED and self.membership.num_hosts > 1
        latecomers_seconds = min(LATECOMERS_SECONDS, self._seconds)
        if waits:
            self._tell(f"{words}\nends when the other hosts have been notified, in {latecomers_seconds:.0f} s at most")
        end = self._clock() + (latecomers_seconds if waits else GOODBYE_SECONDS)
        others = set(range(1, self.membership.num_hosts))
        notified = self.dismissed
        while self._clock() < end:
            for host in range(self.membership.num_hosts):
                if host not in notified and self.connections.is_here(host):
                    self.connections.send(host, Finish(code, words))
                    notified.add(host)
            if (not waits or others <= notified) and not any(self.connections.is_here(host) for host in notified):
                return  # each hangs up when it has read its message
            self.connections.pump(TICK_SECONDS)


@contextlib.contextmanager
def rendezvous(
    membership: Membership,
    token: str,
    seconds: float,
    tell: Callable[[str], object],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Rendezvous]:
    """seconds: how long hosts wait for each other. Raises InvalidJob where the port cannot be had."""
    with contextlib.closing(HostConnections(listening(membership), token, membership.num_hosts, tell)) as connections:
        yield Rendezvous(membership, connections, seconds, tell, clock)


def listening(membership: Membership) -> socket.socket:
    """Where the hosts come to."""
    allow_files(2 * membership.num_hosts + MAX_UNKNOWN)
    try:
        listener = socket.create_server(("", membership.port), backlog=BACKLOG)
    except OSError as error:
        raise InvalidJob(
            f"host 0 cannot listen on port {membership.port}: {error.strerror or error}; another job may have it: set "
            "MASTER_PORT to a free port on all hosts"
        ) from error
    return listener
