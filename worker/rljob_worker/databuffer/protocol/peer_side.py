"""What data buffers tell each other: frozen messages through links, tickets of streams, questions for error messages.

Messages arrive exactly once and in order (`links`); nobody waits for an answer. Rows and weights are fetched as streams
of record batches (`RecordStream`), and only when they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from rljob_worker.batch.column_kind import ColumnKind

PeerAnswer = dict[str, Any]

Take = Callable[[pa.RecordBatch, bytes], None]
"""Copies a record batch, which came with this checksum, to where it belongs; the memory is not kept."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """One message to a peer."""


class RowsOffered(Message, frozen=True):
    """The sender has sealed all its parts that feed a share, and holds these rows of it."""

    edge: str
    step: int
    share: int
    header: bytes
    """Numbers and lengths of the rows, `Header.to_bytes`."""
    kinds: dict[str, ColumnKind]
    """What each column is made of."""
    rows: bytes = b""
    """The rows themselves where they are few, `rows.stream.packed`; empty: to be fetched."""


class RowsTaken(Message, frozen=True):
    """The sender has copied everything offered to it for these shares."""

    edge: str
    step: int
    shares: tuple[int, ...]


class Up(Message, frozen=True):
    """What the hosts below the sender have contributed to a gathering, merged."""

    topic: str
    step: int
    payload: bytes


class Down(Message, frozen=True):
    """An announcement to everybody below."""

    topic: str
    step: int
    payload: bytes


class ChunkOffered(Message, frozen=True):
    """The sender holds a chunk of one version of some weights."""

    edge: str
    version: int
    source: int
    """Number of the source among the edge's sources."""
    index: int
    """Number of the chunk among its source's, from 0."""
    num_bytes: int
    table: bytes
    """What lies in the chunk; only workers read it."""
    checksum: int


class ChunkTaken(Message, frozen=True):
    """The sender has copied a chunk and found its checksum right."""

    edge: str
    version: int
    source: int
    index: int


class SourceClosed(Message, frozen=True):
    """A source has sent all its chunks of a version."""

    edge: str
    version: int
    source: int
    num_chunks: int


class VersionWanted(Message, frozen=True):
    """A rank of the sender asks for a version that did not come to it, or has gone by: offer it once more."""

    edge: str
    version: int
    source: int


class VersionGone(Message, frozen=True):
    """The sender does not hold a version that was wanted."""

    edge: str
    version: int
    source: int
    held: tuple[int, ...]
    """Versions of this source that it holds whole."""


class LeaseAsked(Message, frozen=True):
    """A generator asks an owner for a lease of a round, or an owner that has none left asks the next one for it."""

    stage: str
    step: int
    number: int
    """Number of the round in its step, from 0."""
    num_leases: int
    """Leases of the round, as every generator knows."""
    generator: int
    hops: int = 0
    """Owners that had none left."""


class LeaseGranted(Message, frozen=True):
    """An owner gives a generator a lease of a round; None: there are none left."""

    stage: str
    step: int
    number: int
    generator: int
    lease: int | None


class GuestHello(Message, frozen=True):
    """First words of a guest to the owner that it asks first."""


class LeaseRequested(Message, frozen=True):
    """A generator of a guest wants a lease: from the guest, or from the owner that it asked, which has none."""

    guest: str
    generator: int
    """Number of the copy on the guest."""
    is_passed_on: bool = False


class LeaseMessage(Message, frozen=True):
    """Something about one lease (`routes.guest_route.LeaseId`)."""

    stage: str
    step: int
    rank: int
    index: int
    generator: int


class LeaseAssigned(LeaseMessage, frozen=True):
    """An owner gives a generator a lease."""

    version: int
    """Version of the policy to draw it with."""


class LeaseReturned(LeaseMessage, frozen=True):
    """The sender will not finish a lease."""


class LeaseDelivered(LeaseMessage, frozen=True):
    """The sender has made the rows of a lease."""

    contents: bytes
    """What lies in the segment, `encode` of `contents.Contents`."""
    report: bytes
    """Metrics and samples, `metrics.report`."""
    num_bytes: int
    checksum: int
    """XXH3 of the segment and of `contents`."""


class LeaseTaken(LeaseMessage, frozen=True):
    """The sender has the rows of a lease, from this guest or from another one: they may be forgotten."""


class LeasesFree(Message, frozen=True):
    """An owner has leases and nobody who asks for them; on its way round the owners."""

    owner: str
    num_leases: int


class GuestLost(Message, frozen=True):
    """From the owner that a guest asks first, to the other owners: that process is gone. Others have perhaps never
    spoken with it, and would give what it has asked for to nobody."""

    guest: str
    cause: str
    """Empty where it said itself that it leaves."""


class ParentRequested(Message, frozen=True):
    """A guest wants a version of some weights, and asks who gives it."""

    edge: str
    version: int


class ParentNamed(Message, frozen=True):
    """Who gives a guest a version."""

    edge: str
    version: int
    guest: str
    """Empty: the hosts of the sources."""


class Broken(Message, frozen=True):
    """The data plane cannot go on: class and words of the first cause."""

    kind: str
    words: str


class Departure(Message, frozen=True):
    """The sender's workers are done and it ends: its silence means nothing."""


WeightsMessage = ChunkOffered | ChunkTaken | SourceClosed | VersionWanted | VersionGone
GuestMessage = (
    GuestHello | LeaseRequested | LeaseAssigned | LeaseReturned | LeaseDelivered | LeaseTaken | LeasesFree
    | GuestLost | ParentRequested | ParentNamed
)  # fmt: skip
PeerMessage = (
    RowsOffered | RowsTaken | Up | Down | WeightsMessage | LeaseAsked | LeaseGranted | GuestMessage | Broken | Departure
)


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Messages number `first`, `first` + 1, … of the sender to the receiver, counted from 0. None: a sign of life."""

    first: int
    messages: tuple[PeerMessage, ...]


class RowsTicket(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Asks for rows [first, stop) of those that were offered for a share."""

    edge: str
    step: int
    share: int
    first: int
    stop: int
    batch_bytes: int
    """Size of the record batches, about."""


class ChunkTicket(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Asks for a chunk that was offered."""

    edge: str
    version: int
    source: int
    index: int


class LeaseTicket(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Asks for the segment with the rows of a lease."""

    stage: str
    step: int
    rank: int
    index: int


Ticket = RowsTicket | ChunkTicket | LeaseTicket


class PartTicket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a reader asks for: the rows that one producer put."""

    edge: str
    step: int
    part: int

    def __str__(self) -> str:
        return f"part {self.part} of edge {self.edge}, step {self.step}"


class WhatIsMissing(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Which producers of the asked host have not put their part yet, and what each last said it was doing."""

    edge: str
    step: int


class WhatDoTheyDo(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """What the workers of the asked host last said they were doing, a line each."""


class WhatTheyPosted(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The last posts of the workers of the asked host."""


Question = WhatIsMissing | WhatDoTheyDo | WhatTheyPosted
"""Answered at once with a dictionary of plain values by rank."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordStream:
    """What lies under a ticket. Each record batch comes with a checksum, empty where the offer has it."""

    schema: pa.Schema
    records: Iterator[tuple[pa.RecordBatch, bytes]]
