"""The trees by which weights go from each source over the hosts that receive, and what of them one host carries. Pure.

Places of a tree are numbered level by level: the source's host has one child, the one at place 0, the others have
FAN_OUT. The tree of each source is rotated against those of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FAN_OUT = 2

STREAM_THREADS = 32
"""Chunks that a data buffer fetches at once, each in a thread."""


def stream_connections(cores: int) -> int:
    """Connections to one peer for streams: one keeps a core busy, and more than there are cores for take longer than
    one."""
    return max(1, min(8, cores // 2))


def rotation(source: int, num_sources: int, num_targets: int) -> int:
    """The target at place 0 of a source's tree."""
    return source * num_targets // num_sources


def parent_place(place: int) -> int | None:
    """None for place 0, whose parent is the source's host."""
    return (place - 1) // FAN_OUT if place else None


def child_places(place: int, num_targets: int) -> range:
    first = place * FAN_OUT + 1
    return range(first, max(first, min(first + FAN_OUT, num_targets)))


@dataclass(frozen=True, slots=True)
class TreeLoad:
    """What the busiest host that receives carries, as numbers of trees."""

    handed_on: int
    """Children that it has, over all trees."""
    of_one_parent: int
    """Trees in which it has the same parent."""


def tree_load(source_hosts: Sequence[int], num_targets: int) -> TreeLoad:
    """The most over all hosts that receive. source_hosts: of each source the number of its host."""
    handed_on, parents = Counter[int](), Counter[tuple[int, str, int]]()
    for target, parent, num_children in _places(source_hosts, num_targets):
        handed_on[target] += num_children
        parents[target, *parent] += 1
    return TreeLoad(max(handed_on.values()), max(parents.values()))


def _places(source_hosts: Sequence[int], num_targets: int) -> Iterator[tuple[int, tuple[str, int], int]]:
    """In each tree every target, its parent and how many children it has."""
    for source, host in enumerate(source_hosts):
        first = rotation(source, len(source_hosts), num_targets)
        for place in range(num_targets):
            above = parent_place(place)
            parent = ("source", host) if above is None else ("target", (above + first) % num_targets)
            yield (place + first) % num_targets, parent, len(child_places(place, num_targets))
