"""The trees of all hosts of a job in one process: messages and background work happen when the test says so."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_worker.databuffer.protocol.peer_side import Down, PeerMessage, Up
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.tree import Announcement, MessageTree, Topic

COUNT, NOTE, ORDER = "count", "note", "order"
"""What is gathered; what is announced and kept; what is announced and acted on."""


def merged(payloads: Sequence[bytes]) -> bytes:
    """Names, in the order they were merged in."""
    return b" ".join(payloads)


@dataclass
class Forest:
    """Hosts by position; member m of a host is called by its number, which no other host has."""

    shape: JobTree
    members: Mapping[int, Sequence[int]]
    """By position, of the hosts that have any."""
    audience: tuple[int, ...] = ()
    topics: tuple[str, ...] = (COUNT,)
    kept_steps: int = 3
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    complete: list[tuple[Host, int, bytes]] = field(default_factory=list)
    heard: list[tuple[Host, int, bytes]] = field(default_factory=list)
    merges: list[list[bytes]] = field(default_factory=list)
    work: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    """Background work by name."""
    small: list[str] = field(default_factory=list)
    """What might have been done at once."""
    post: dict[tuple[Host, Host], deque[PeerMessage]] = field(default_factory=dict)
    delivered: list[tuple[Host, Host, PeerMessage]] = field(default_factory=list)
    """Sender, receiver, message."""

    def __post_init__(self) -> None:
        self.hosts = [self.shape.host(position) for position in range(self.shape.size)]
        self.monitors = {host: Monitor() for host in self.hosts}
        self.trees = {host: self._tree(host) for host in self.hosts}

    def _tree(self, host: Host) -> MessageTree:
        sources = tuple(sorted(position for position, members in self.members.items() if members))
        own = frozenset(self.members.get(self.shape.position(host), ()))

        def complete(step: int, everything: bytes) -> None:
            self.complete.append((host, step, everything))

        return MessageTree(
            host,
            self.shape,
            [Topic(name, self.merge, own, sources, None if name == ORDER else complete) for name in self.topics],
            [
                Announcement(NOTE, self.audience),
                Announcement(ORDER, self.audience, lambda step, payload: self.heard.append((host, step, payload))),
            ],
            monitor=self.monitors[host],
            links=_Sends(self, host),
            work=self,  # type: ignore[arg-type]
            kept_steps=self.kept_steps,
        )

    def merge(self, payloads: Sequence[bytes]) -> bytes:
        self.merges.append(list(payloads))
        return merged(payloads)

    @property
    def root(self) -> MessageTree:
        return self.trees[self.shape.root]

    def at(self, position: int) -> MessageTree:
        return self.trees[self.hosts[position]]

    def contribute(self, member: int, step: int = 1) -> None:
        """A member says its own number."""
        position = next(position for position, members in self.members.items() if member in members)
        self.at(position).contribute(COUNT, step, member, b"%d" % member)

    def submit(self, what: str, job: Callable[[], None]) -> None:
        """The background work of all hosts."""
        self.work.append((what, job))

    def do(self, what: str, job: Callable[[], None], *, is_small: bool) -> None:
        """Later in any case: nothing may rely on small work being done at once."""
        self.small += [what] if is_small else []
        self.submit(what, job)

    def go_on(self, limit: int | None = None) -> None:
        """Until nothing is left to happen, or for that many events; messages of a pair of hosts stay in order."""
        done = 0
        while done != limit and (self.work or any(self.post.values())):
            pairs = sorted(pair for pair, waiting in self.post.items() if waiting)
            choice = self.rng.randrange(len(self.work) + len(pairs))
            if choice < len(self.work):
                what, job = self.work.pop(choice)
                self.done.append(what)
                job()
            else:
                self._deliver(*pairs[choice - len(self.work)])
            done += 1

    def deliver_all(self) -> None:
        """Every message that is under way; no background work."""
        for pair in sorted(self.post):
            while self.post[pair]:
                self._deliver(*pair)

    def _deliver(self, sender: Host, receiver: Host) -> None:
        message = self.post[sender, receiver].popleft()
        self.delivered.append((sender, receiver, message))
        if isinstance(message, Up):
            self.trees[receiver].hear_up(sender, message)
        else:
            assert isinstance(message, Down)
            self.trees[receiver].hear_down(sender, message)

    def announced(self, position: int, step: int, name: str = NOTE) -> bytes | None:
        host = self.hosts[position]
        with self.monitors[host].look():
            return self.trees[host].announced(name, step)


@dataclass
class _Sends:
    forest: Forest
    here: Host

    def send(self, host: Host, message: PeerMessage) -> None:
        self.forest.post.setdefault((self.here, host), deque()).append(message)
