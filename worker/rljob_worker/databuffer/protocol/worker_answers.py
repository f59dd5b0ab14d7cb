"""What a data buffer answers the workers of its host: one answer to each of `worker_calls`, each a frozen type."""

from __future__ import annotations

from typing import Any

import msgspec

from rljob_worker.databuffer.protocol.contents import Contents


class WorkerReply(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, kw_only=True):
    """Answer to a request of a worker."""


class Done(WorkerReply, frozen=True, kw_only=True):
    """Acknowledged."""


class NotYet(WorkerReply, frozen=True, kw_only=True):
    """Retry."""


class EdgeOfWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One worker's ends of an edge."""

    columns: list[str]
    part: int | None
    share: int | None


class WeightsOfWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One worker's ends of an edge of weights."""

    source: int | None
    """Its number among the sources."""
    receives: bool
    slot_bytes: int
    """Room of a chunk."""


class Welcome(WorkerReply, frozen=True, kw_only=True):
    """What a client must know."""

    places: list[tuple[str, int]]
    """Files and their bytes, to be mapped side by side: the arena, and the spill file if there is one."""
    life: str
    """Tells this process from one that takes its place."""
    edges: dict[str, EdgeOfWorker]
    weights: dict[str, WeightsOfWorker]
    deadline_seconds: float


class Statuses(WorkerReply, frozen=True, kw_only=True):
    """By rank; empty while the host has not started."""

    by_rank: dict[int, dict[str, Any]]


class Reservation(WorkerReply, frozen=True, kw_only=True):
    """Where to write, in bytes from the start of what is mapped."""

    offset: int


class ShareLocation(WorkerReply, frozen=True, kw_only=True):
    """Where a share lies."""

    offset: int
    contents: Contents
    producer_seconds: float
    transfer_seconds: float


class ChunkLocation(WorkerReply, frozen=True, kw_only=True):
    """Where a chunk lies."""

    source: int
    index: int
    offset: int
    num_bytes: int
    table: bytes


class Complete(WorkerReply, frozen=True, kw_only=True):
    """All chunks of all sources have been had, or all leases."""

    num_chunks: int
    """Or leases."""


class Lease(WorkerReply, frozen=True, kw_only=True):
    """Number of a lease among those of its round; None: there are none left."""

    lease: int | None


class DeliveredLease(WorkerReply, frozen=True, kw_only=True):
    """Where the rows of a lease lie."""

    index: int
    guest: str
    """Who made them."""
    offset: int
    contents: Contents
    report: bytes


class GuestLease(WorkerReply, frozen=True, kw_only=True):
    """What a generator of a guest generates next."""

    stage: str
    """Empty: nothing more, as the job is over or this host is to end."""
    step: int = 0
    rank: int = 0
    index: int = 0
    version: int = 0
    first: int = 0
    """Draw numbers `first` to `end` - 1."""
    end: int = 0


class GuestFigures(WorkerReply, frozen=True, kw_only=True):
    """What an owner counted since it began."""

    num_there: int
    given_again: int
    dropped_late: int
    num_lost: int


class Said(WorkerReply, frozen=True, kw_only=True):
    """Bytes that others said."""

    payload: bytes


class Flag(WorkerReply, frozen=True, kw_only=True):
    """Yes or no."""

    value: bool


WorkerAnswer = (
    Done | NotYet | Welcome | Statuses | Reservation | ShareLocation | ChunkLocation | Complete | Lease | Said | Flag
    | DeliveredLease | GuestLease | GuestFigures
)  # fmt: skip


class Failed(WorkerReply, frozen=True, kw_only=True):
    """An error of ours instead: its class and its words."""

    kind: str
    words: str


class TurnedAway(WorkerReply, frozen=True, kw_only=True):
    """The caller is not let in."""

    reason: str


Introduction = dict[str, list[str]]
"""Who asks, once for all requests of a connection: headers by name (`links.fencing`). Answer: Done or TurnedAway."""
