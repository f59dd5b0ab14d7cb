"""Who gives a version to which guest: a tree for each version that grows as guests ask, so that not all of them read
from the sources. Pure.

    sources ─┬▶ 1st ─┬▶ 3rd ─▶ …       a guest passes chunks on as they come
             │       └▶ 4th
             └▶ 2nd ─┬▶ 5th

A guest whose parent is lost goes to the sources: whoever asked before it may wait for it.
"""

from __future__ import annotations

from rljob_worker.databuffer.routes.hosts import Host

FAN_OUT = 2
KEPT_VERSIONS = 8
"""Versions of an edge whose trees are known; who asks for an older one goes to the sources."""


class GuestParents:
    """The guests that one owner answers."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, int], list[Host]] = {}
        """By edge and version, in the order in which they asked."""

    def parent(self, edge: str, version: int, guest: Host) -> Host | None:
        """Who gives a version to a guest; None: the hosts of the sources."""
        members = self._members.setdefault((edge, version), [])
        self._forget_old(edge)
        if guest in members:
            return None
        members.append(guest)
        place = len(members) - 1 - FAN_OUT
        return None if place < 0 else members[place // FAN_OUT]

    def lose(self, guest: Host) -> None:
        """A guest is gone."""
        for members in self._members.values():
            if guest in members:
                members.remove(guest)

    def _forget_old(self, edge: str) -> None:
        versions = sorted(version for name, version in self._members if name == edge)
        for version in versions[:-KEPT_VERSIONS]:
            del self._members[edge, version]
