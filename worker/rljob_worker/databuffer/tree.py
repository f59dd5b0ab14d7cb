"""One host's place in the tree: what goes up is merged here, what comes down is kept for workers and passed on.

report             up, from every worker             kept at the root for the lead
layout/EDGE        up, from the edge's producers     down to the edge's hosts, from the lowest that covers all of those
outcomes/STAGE     up, from who draws in the stage   down to the same, from the lowest that covers all of those
stop               up, at once
opening, verdict   down, from the lead
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.errors import OutOfOrder, require
from rljob_worker.databuffer.protocol.peer_side import Down, Up
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.work import Work

STOP = "stop"
SMALL_BYTES = 1 << 16
"""Bytes of a topic's payloads: so few are merged, or acted on, by the message that brings them."""

MAX_OPEN_STEPS = 64
"""Steps of a topic that are being gathered: who is further ahead than that is wrong."""

T = TypeVar("T")


@dataclass(slots=True)
class Gathering:
    """Contributions of this host's own members, by number, and of the hosts below it that have any."""

    members: frozenset[int]
    hosts: frozenset[Host]
    _said: dict[int, bytes] = field(default_factory=dict)
    _heard: dict[Host, bytes] = field(default_factory=dict)
    is_over: bool = False
    """Whether what was gathered has gone up."""

    def say(self, member: int, payload: bytes) -> list[bytes] | None:
        """A member of this host contributes; everything to merge once nothing is missing."""
        assert member in self.members, f"{member} is none of {sorted(self.members)}"
        if member in self._said:
            raise OutOfOrder(f"member {member} has said it before: one process of a worker does, once")
        self._said[member] = payload
        return self._complete()

    def hear(self, host: Host, payload: bytes) -> list[bytes] | None:
        """A child has merged what it and those below it had to say."""
        require(host in self.hosts, f"host {host} has nothing to say here")
        require(host not in self._heard, f"host {host} has said it twice")
        self._heard[host] = payload
        return self._complete()

    @property
    def has_begun(self) -> bool:
        """Whether a member of this host has contributed."""
        return bool(self._said)

    @property
    def missing_members(self) -> list[int]:
        return sorted(self.members - self._said.keys())

    @property
    def missing_hosts(self) -> list[Host]:
        """Hosts with which, or below which, somebody is missing."""
        return sorted(self.hosts - self._heard.keys())

    def _complete(self) -> list[bytes] | None:
        """In an order that does not depend on who was first."""
        if self.missing_members or self.missing_hosts:
            return None
        return [self._said[member] for member in sorted(self._said)] + [self._heard[h] for h in sorted(self._heard)]


@dataclass(frozen=True, slots=True)
class Topic:
    """What is gathered, from whom, and what becomes of it."""

    name: str
    merge: Callable[[Sequence[bytes]], bytes]
    members: frozenset[int]
    """Who contributes on this host."""
    sources: tuple[int, ...]
    """Positions of the hosts that have members."""
    complete: Callable[[int, bytes], None] | None
    """At the root, with the step and all contributions; returns at once. None: it is announced under the same name,
    from the lowest host that has all sources below it: down from there, and up for those who are elsewhere."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What comes down."""

    name: str
    audience: tuple[int, ...]
    """Positions of the hosts that hear it."""
    heard: Callable[[int, bytes], None] | None = None
    """On every host of the audience; None: kept until a worker asks. Runs in the background when it hears much."""


class MessageTree:
    """Gatherings by topic and step, and announcements."""

    def __init__(
        self,
        here: Host,
        shape: JobTree,
        topics: Sequence[Topic],
        tells: Sequence[Announcement],
        *,
        monitor: Monitor,
        links: Links,
        work: Work,
        kept_steps: int,
    ) -> None:
        self._shape = shape
        self._here, self._position = here, shape.position(here)
        self._parent, self._children = shape.parent(here), shape.children(here)
        self._topics = {topic.name: topic for topic in topics}
        self._tells = {announcement.name: announcement for announcement in tells}
        self._monitor, self._links, self._work = monitor, links, work
        self._kept_steps = kept_steps
        self._gatherings: dict[tuple[str, int], Gathering] = {}
        self._announced: dict[tuple[str, int], bytes] = {}
        self._is_stop_requested = False

    # ---- up

    def contribute(self, topic: str, step: int, member: int, payload: bytes) -> None:
        """A member of this host has its say; returns at once, for a worker waits."""
        with self._monitor.change():
            complete = self._gathering(topic, step).say(member, payload)
        self._go_on(topic, step, complete, is_message=False)

    def hear_up(self, sender: Host, message: Up) -> None:
        """From a child."""
        require(sender in self._children, f"host {sender} is not below this one")
        if message.topic == STOP:
            self.request_stop()
            return
        require(message.topic in self._topics, f"nobody gathers {message.topic!r}")
        with self._monitor.change():
            complete = self._gathering(message.topic, message.step).hear(sender, message.payload)
        self._go_on(message.topic, message.step, complete, is_message=True)

    def request_stop(self) -> None:
        """Climbs without waiting for anything; said once."""
        with self._monitor.change():
            is_news, self._is_stop_requested = not self._is_stop_requested, True
        if is_news and self._parent is not None:
            self._links.send(self._parent, Up(STOP, 0, b""))

    @property
    def is_stop_requested(self) -> bool:
        with self._monitor.look():
            return self._is_stop_requested

    def missing(self, topic: str, step: int) -> tuple[list[int], list[Host]]:
        """Members of this host, and children with which or below which somebody, has not contributed yet."""
        with self._monitor.look():
            gathering = self._gatherings.get((topic, step)) or self._empty(topic)
            return gathering.missing_members, gathering.missing_hosts

    @property
    def unfinished(self) -> list[tuple[str, int]]:
        """Topics and steps to which members of this host have contributed, and which have not gone up; under the
        lock."""
        return sorted(key for key, item in self._gatherings.items() if item.has_begun and not item.is_over)

    def _go_on(self, topic: str, step: int, payloads: list[bytes] | None, *, is_message: bool) -> None:
        if payloads is not None and len(payloads) == 1:  # nothing to merge
            self._pass_on(topic, step, payloads[0])
        elif payloads is not None:
            is_small = is_message and sum(map(len, payloads)) <= SMALL_BYTES
            merge = self._topics[topic].merge
            self._work.do(
                f"merging {topic} of step {step}",
                lambda: self._pass_on(topic, step, merge(payloads)),
                is_small=is_small,
            )

    def _pass_on(self, name: str, step: int, payload: bytes) -> None:
        topic = self._topics[name]
        if topic.complete is None and self._shape.covers(self._here, topic.sources):
            self._spread(topic, step, payload)
        elif self._parent is not None:
            self._links.send(self._parent, Up(name, step, payload))
        else:
            assert topic.complete is not None, "the root covers everybody"
            topic.complete(step, payload)
        with self._monitor.change():
            self._gatherings[name, step].is_over = True

    def _spread(self, topic: Topic, step: int, payload: bytes) -> None:
        """Everybody's word is here, merged: to those of the audience who have not heard it from a host below."""
        audience = self._tells[topic.name].audience
        if self._parent is not None and not self._shape.covers(self._here, audience):
            self._links.send(self._parent, Up(topic.name, step, payload))
        informed = [child for child in self._children if self._shape.covers(child, topic.sources)]
        self._tell(topic.name, step, payload, [child for child in self._children if child not in informed])

    def _gathering(self, topic: str, step: int) -> Gathering:
        if (topic, step) not in self._gatherings:
            self._forget_over(topic, step - self._kept_steps)
            num_open = sum(key[0] == topic and not item.is_over for key, item in self._gatherings.items())
            if num_open >= MAX_OPEN_STEPS:
                raise OutOfOrder(f"step {step} of {topic}, while {num_open} others are being gathered")
            self._gatherings[topic, step] = self._empty(topic)
        return self._gatherings[topic, step]

    def _empty(self, name: str) -> Gathering:
        topic = self._topics[name]
        return Gathering(topic.members, frozenset(c for c in self._children if self._shape.reaches(c, topic.sources)))

    def _forget_over(self, topic: str, before: int) -> None:
        over = [key for key, item in self._gatherings.items() if key[0] == topic and key[1] < before and item.is_over]
        for key in over:
            del self._gatherings[key]

    # ---- down

    def tell(self, name: str, step: int, payload: bytes) -> None:
        """From here to every host below that is of the audience; the root tells all."""
        self._tell(name, step, payload, self._children)

    def _tell(self, name: str, step: int, payload: bytes, children: Iterable[Host]) -> None:
        announcement = self._tells[name]
        for child in children:
            if self._shape.reaches(child, announcement.audience):
                self._links.send(child, Down(name, step, payload))
        if self._position in announcement.audience:
            self._take(announcement, step, payload)

    def hear_down(self, sender: Host, message: Down) -> None:
        """From the parent."""
        require(sender == self._parent, f"host {sender} is not above this one")
        require(message.topic in self._tells, f"nobody tells {message.topic!r}")
        self.tell(message.topic, message.step, message.payload)

    def announced(self, name: str, step: int) -> bytes | None:
        """Called under the lock."""
        return self._announced.get((name, step))

    def keep(self, name: str, step: int, payload: bytes) -> None:
        """Keep something for the workers of this host, as if it had come down."""
        with self._monitor.change():
            self._announced[name, step] = payload
            _forget(self._announced, name, step - self._kept_steps)

    def _take(self, announcement: Announcement, step: int, payload: bytes) -> None:
        if announcement.heard is None:
            self.keep(announcement.name, step, payload)
            return
        heard = announcement.heard
        self._work.do(
            f"{announcement.name} of step {step}", lambda: heard(step, payload), is_small=len(payload) <= SMALL_BYTES
        )


def _forget(table: dict[tuple[str, int], T], name: str, before: int) -> None:
    for key in [key for key in table if key[0] == name and key[1] < before]:
        del table[key]
