"""Layouts: which producer holds which row. Merged per host and spread along a tree: few messages per host and step.

up:    a host with producers waits for its own parts and its children's layouts, then tells its parent
down:  the root has everything; every host tells its children
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rljob_worker.arrow_table import table_from_bytes, table_to_bytes
from rljob_worker.databuffer.hosts import FAN_OUT, tree_children
from rljob_worker.row_index import RowIndex

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Rows of some parts: parts int64 [rows], and the index of as many rows; within a part in row_id order."""

    parts: Int64
    index: RowIndex

    @staticmethod
    def of_part(part: int, index: RowIndex) -> Layout:
        return Layout(np.full(len(index), part, np.int64), index.copy())

    @staticmethod
    def merge(layouts: Sequence[Layout]) -> Layout:
        """All rows; parts in ascending order, so the result does not depend on who arrived first."""
        parts = np.concatenate([layout.parts for layout in layouts])
        order = np.argsort(parts, kind="stable")
        return Layout(parts[order], RowIndex.concat([layout.index for layout in layouts]).take(order))

    def to_bytes(self) -> bytes:
        """Arrow IPC stream."""
        return table_to_bytes({"part": self.parts} | self.index.columns())

    @staticmethod
    def from_bytes(data: bytes) -> Layout:
        columns = table_from_bytes(data)
        return Layout(columns["part"], RowIndex.of_columns(columns))


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A complete layout, and the share of every row of it."""

    layout: Layout
    shares: Int64

    def shares_of_part(self, part: int) -> Int64:
        """Share of every row of one part, in the part's row order."""
        shares: Int64 = self.shares[self.layout.parts == part]
        return shares

    def sources(self, share: int) -> list[int]:
        """Parts with rows of the share; part 0 when it has no row at all: somebody must tell the columns' types."""
        return [int(part) for part in np.unique(self.layout.parts[self.shares == share])] or [0]

    def shares_fed_by(self, part: int, num_shares: int) -> list[int]:
        """The other way round: shares that pull from `part`."""
        fed = set(np.unique(self.shares_of_part(part)).tolist())
        if part == 0:
            fed |= set(range(num_shares)) - set(np.unique(self.shares).tolist())
        return sorted(fed)


@dataclass(slots=True)
class Gathering:
    """One host's share of spreading one step's layouts: what it still waits for."""

    position: int
    size: int
    num_producers: int
    parts_here: frozenset[int]
    fan_out: int = FAN_OUT
    _arrived: list[Layout] = field(default_factory=list)
    _parts: set[int] = field(default_factory=set)
    _children: set[int] = field(default_factory=set)

    def children(self) -> range:
        """Positions below us."""
        return tree_children(self.position, self.size, self.fan_out)

    def add_part(self, part: int, layout: Layout) -> Layout | None:
        """A producer of this host is done; the merged layout of our subtree once that is complete."""
        self._parts.add(part)
        return self._add(layout)

    def add_child(self, position: int, layout: Layout) -> Layout | None:
        """A child's whole subtree is done; the same message may arrive twice."""
        if position in self._children:
            return None
        self._children.add(position)
        return self._add(layout)

    def _add(self, layout: Layout) -> Layout | None:
        self._arrived.append(layout)
        # producers come first in the numbering, so a subtree has some exactly when its root is one
        expected = {child for child in self.children() if child < self.num_producers}
        complete = self._parts == self.parts_here and self._children == expected
        return Layout.merge(self._arrived) if complete else None
