"""What one host gathers of one topic and step before it speaks to its parent: pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_worker.databuffer.protocol.errors import OutOfOrder, require
from rljob_worker.databuffer.routes.hosts import Host


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
