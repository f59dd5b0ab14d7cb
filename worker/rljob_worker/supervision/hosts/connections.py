"""Host 0's connections to all hosts: one thread, and no call waits longer than its limit.

    host 0 ── GREETING + its number ──▶ caller ── the caller's number, sealed Hello ──▶ host 0

A caller without the token is turned away before anything it says is looked at.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.supervision.hosts.messages import Finish, Hello, OfHost, OfHost0, encode_message, read_of_host
from rljob_worker.supervision.hosts.secret import NONCE_BYTES, Foreign, Seals
from rljob_worker.supervision.hosts.stream import FrameStream

GREETING = b"rljob launch 1 "
OTHER_TOKEN = b"another token"
"""The answer to a caller that was turned away."""

MAX_CALL_BYTES = 1 << 20
"""Bytes of a message of a host, at most."""
HELLO_SECONDS = 10.0
"""How long a caller may take to say who it is."""
MAX_UNKNOWN = 4096
"""Callers that have not said yet who they are."""
BACKLOG = 4096
MAX_REPORTED = 5
"""Strangers that are reported on the console."""


@dataclass(slots=True)
class HostLost:
    """A host that is not there any more."""

    why: str


@dataclass(slots=True)
class HostRefused:
    """A host came that cannot be taken; it was notified."""

    why: str


Event = tuple[int, OfHost | HostLost | HostRefused]
"""A host's number, and what came of it."""


class _Caller:
    def __init__(self, channel: socket.socket) -> None:
        self.stream = FrameStream(channel, MAX_CALL_BYTES)
        self.since = time.monotonic()
        self.ours = secrets.token_bytes(NONCE_BYTES)
        self.seals: Seals | None = None
        self.host: int | None = None
        self.watched = selectors.EVENT_READ


class HostConnections:
    """`pump` says what came; `send` hands over. Hosts are known by their numbers from their Hello on."""

    def __init__(self, listener: socket.socket, token: str, num_hosts: int, tell: Callable[[str], object]) -> None:
        """listener: closed with this. tell: gets a sentence for each stranger, up to a few."""
        self._listener = listener
        self._token = token
        self._num_hosts = num_hosts
        self._tell = tell
        self._num_strangers = 0
        self._unknown: set[_Caller] = set()
        self._hosts: dict[int, _Caller] = {}
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def pump(self, seconds: float) -> list[Event]:
        """Read, write and accept what can be; wait for something so long at most."""
        events: list[Event] = []
        for key, mask in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
                continue
            caller = key.data
            if mask & selectors.EVENT_WRITE:
                caller.stream.flush()
            events += self._heard(caller)
        for caller in [item for item in self._unknown if time.monotonic() - item.since > HELLO_SECONDS]:
            self._turn_away(caller, f"did not say who it is within {HELLO_SECONDS:.0f} s")
        return events

    def send(self, host: int, message: OfHost0) -> None:
        """To one host; to one that is lost it goes nowhere."""
        self._send(host, encode_message(message))

    def send_all(self, message: OfHost0) -> None:
        body = encode_message(message)
        for host in list(self._hosts):
            self._send(host, body)

    def is_here(self, host: int) -> bool:
        return host in self._hosts

    @property
    def has_to_write(self) -> bool:
        """Whether something that was sent is still here."""
        return any(caller.stream.has_to_write for caller in self._hosts.values())

    def address_of(self, host: int) -> str:
        """By which others reach a host that is here: where it called from. Host 0 calls itself, perhaps by a name that
        is loopback's: what others called it by is better."""
        if host != 0:
            return self._hosts[host].stream.peer_address
        others = (caller.stream.local_address for number, caller in self._hosts.items() if number != 0)
        return next(others, self._hosts[0].stream.peer_address)

    def close(self) -> None:
        for caller in [*self._hosts.values(), *self._unknown]:
            caller.stream.close()
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        while len(self._unknown) < MAX_UNKNOWN:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            try:
                caller = _Caller(channel)
            except OSError:  # it has gone meanwhile
                channel.close()
                continue
            self._unknown.add(caller)
            self._selector.register(caller.stream, selectors.EVENT_READ, caller)
            caller.stream.send(GREETING + caller.ours)

    def _heard(self, caller: _Caller) -> list[Event]:
        events: list[Event] = []
        for frame in caller.stream.frames():
            if caller.stream.fileno() < 0:  # turned away by the frame before
                return events
            events += self._taken(caller, frame)
        if caller.stream.fileno() >= 0:
            if caller.stream.ended is not None:
                events += self._ended(caller)
            else:
                self._watch(caller)
        return events

    def _taken(self, caller: _Caller, frame: bytes) -> list[Event]:
        if caller.seals is None:
            if len(frame) != NONCE_BYTES:
                self._turn_away(caller, "is not a launcher")
            else:
                caller.seals = Seals(self._token, caller.ours, frame)
            return []
        try:
            message = read_of_host(caller.seals.open(frame))
        except (Foreign, msgspec.DecodeError):
            self._turn_away(caller, "does not have the token of this job")
            return []
        if caller.host is not None:
            return [(caller.host, message)]
        return self._introduced(caller, message)

    def _introduced(self, caller: _Caller, message: OfHost) -> list[Event]:
        if not isinstance(message, Hello):
            self._turn_away(caller, "did not say who it is")
            return []
        self._unknown.discard(caller)
        if why := self._refusal(message):
            self._answer(caller, encode_message(Finish(int(ExitCode.INVALID_JOB), why)))
            self._forget(caller)
            return [(message.host, HostRefused(why))]
        caller.host = message.host
        self._hosts[message.host] = caller
        return [(message.host, message)]

    def _refusal(self, hello: Hello) -> str:
        if not 0 <= hello.host < self._num_hosts:
            return (
                f"{hello.name} says that it is host {hello.host} of {hello.num_hosts}, and host 0 knows of "
                f"{self._num_hosts}: give all launchers the same number of hosts"
            )
        if hello.host in self._hosts:
            return f"two launchers say that they are host {hello.host}: {hello.name} came when one was here already"
        return ""

    def _ended(self, caller: _Caller) -> list[Event]:
        host, why = caller.host, caller.stream.ended or ""
        self._forget(caller)
        if host is None:
            self._unknown.discard(caller)
            return []
        del self._hosts[host]
        return [(host, HostLost(why))]

    def _turn_away(self, caller: _Caller, why: str) -> None:
        self._unknown.discard(caller)
        if caller.host is not None:
            del self._hosts[caller.host]
        self._num_strangers += 1
        if self._num_strangers <= MAX_REPORTED:
            self._tell(f"a caller from {caller.stream.peer_address} was turned away: it {why}")
        caller.stream.send(OTHER_TOKEN)
        self._forget(caller)

    def _send(self, host: int, body: bytes) -> None:
        caller = self._hosts.get(host)
        if caller is not None:
            self._answer(caller, body)
            self._watch(caller)

    def _answer(self, caller: _Caller, body: bytes) -> None:
        assert caller.seals is not None
        caller.stream.send(caller.seals.seal(body))

    def _watch(self, caller: _Caller) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.stream.has_to_write else 0)
        if wanted != caller.watched:
            self._selector.modify(caller.stream, wanted, caller)
            caller.watched = wanted

    def _forget(self, caller: _Caller) -> None:
        self._selector.unregister(caller.stream)
        caller.stream.close()
