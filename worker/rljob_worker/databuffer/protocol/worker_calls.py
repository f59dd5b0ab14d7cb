"""What the workers of a host ask their own data buffer: requests, each a frozen type, that `worker_answers` answer.

A request that has to wait is answered `NotYet` after at most `HELD_SECONDS`, and asked again: signals reach the
worker's Python between two calls, and a dead worker leaves nothing behind.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rljob_worker.databuffer.protocol.contents import Contents

HELD_SECONDS = 1.0
"""Longest that a data buffer holds a call of a worker."""

ReportTopic = Literal["report", "validation"]
"""What is merged on its way to the lead, step by step (`routes.job_tree`)."""


class WorkerCall(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, kw_only=True):
    """One question of a worker; who asks has been said when the connection was made."""


class WaitingCall(WorkerCall, frozen=True, kw_only=True):
    """A request that may have to wait."""

    waited: float
    """Seconds since it was asked for the first time."""
    seconds: float
    """How long its worker waits in all."""

    @property
    def held_seconds(self) -> float:
        """How long this call may be held."""
        return max(0.0, min(HELD_SECONDS, self.seconds - self.waited))


class WorkerHello(WorkerCall, frozen=True, kw_only=True):
    """First of all: answered by `Welcome`."""


class SetStatus(WorkerCall, frozen=True, kw_only=True):
    """What this worker does, for peers that wait for it."""

    status: dict[str, Any]


class AskStatus(WorkerCall, frozen=True, kw_only=True):
    """Last posts of the workers of a host: answered by `Statuses`."""

    group: str
    host: int


class ReserveRows(WaitingCall, frozen=True, kw_only=True):
    """Room for this worker's part of an edge: `Reservation`."""

    edge: str
    step: int
    num_bytes: int


class SealRows(WorkerCall, frozen=True, kw_only=True):
    """The part is written: `Done`."""

    edge: str
    step: int
    offset: int
    """Offset of the room that it was given."""
    contents: Contents


class GetRows(WaitingCall, frozen=True, kw_only=True):
    """This worker's share: `Rows`."""

    edge: str
    step: int


class ReleaseRows(WorkerCall, frozen=True, kw_only=True):
    """The worker does not look at its share any more: `Done`."""

    edge: str
    step: int


class Drain(WaitingCall, frozen=True, kw_only=True):
    """Wait until everything this worker put, sent and said has arrived: `Done`."""


class OpenVersion(WorkerCall, frozen=True, kw_only=True):
    """This source begins to send a version: `Done`."""

    edge: str
    version: int


class ReserveChunk(WaitingCall, frozen=True, kw_only=True):
    """A slot for the next chunk: `Reservation`."""

    edge: str
    version: int


class SealChunk(WorkerCall, frozen=True, kw_only=True):
    """The chunk is written: `Done`."""

    edge: str
    version: int
    offset: int
    num_bytes: int
    table: bytes
    checksum: int


class CloseVersion(WorkerCall, frozen=True, kw_only=True):
    """This source has sent everything of the version: `Done`."""

    edge: str
    version: int


class ReleaseVersion(WorkerCall, frozen=True, kw_only=True):
    """Nobody will ask this source for the version or an older one any more: `Done`."""

    edge: str
    version: int


class NextChunk(WaitingCall, frozen=True, kw_only=True):
    """Any chunk of the version that this worker has not had: `Chunk`, or `Complete` after the last."""

    edge: str
    version: int


class ReleaseChunk(WorkerCall, frozen=True, kw_only=True):
    """The worker has copied a chunk: `Done`."""

    edge: str
    version: int
    source: int
    index: int


class SkipVersion(WorkerCall, frozen=True, kw_only=True):
    """The worker wants no more of a version: `Done`."""

    edge: str
    version: int


class TakeLease(WaitingCall, frozen=True, kw_only=True):
    """What to draw next of a round of a generating stage: `Lease`."""

    stage: str
    step: int
    number: int
    """Number of the round in its step, from 0."""
    num_leases: int
    """Leases of the round, as every generator knows."""


class TellOutcomes(WorkerCall, frozen=True, kw_only=True):
    """What became of the draw numbers of a round, a byte each, 0 for what this worker did not draw: `Done`."""

    stage: str
    step: int
    number: int
    payload: bytes


class HearOutcomes(WaitingCall, frozen=True, kw_only=True):
    """What became of the rounds of all workers, once each has reported it: `Said`."""

    stage: str
    step: int
    number: int


class OpenLeases(WorkerCall, frozen=True, kw_only=True):
    """The versions that steps up to `last` are drawn with are there: guests may take leases of them. `Done`."""

    first: int
    """The first step of this attempt."""
    last: int
    oldest_version: int
    """Where the job went on that has no older version."""


class OpenValidation(WorkerCall, frozen=True, kw_only=True):
    """The version that a training step left behind is there: guests may take pieces of its validation. `Done`."""

    step: int
    oldest_version: int


class NextDelivery(WaitingCall, frozen=True, kw_only=True):
    """Rows of any lease of this rank that it has not had: `DeliveredLease`, or `Complete` once all owners have all
    leases of the step."""

    stage: str
    step: int


class ReleaseDelivery(WorkerCall, frozen=True, kw_only=True):
    """The rows of a lease are copied: `Done`."""

    stage: str
    step: int
    index: int


class RequestLease(WaitingCall, frozen=True, kw_only=True):
    """A guest's: what to generate next, `GuestLease`."""


class ReserveLease(WaitingCall, frozen=True, kw_only=True):
    """A guest's: room for the rows of a lease, `Reservation`."""

    stage: str
    step: int
    rank: int
    index: int
    num_bytes: int


class DeliverLease(WorkerCall, frozen=True, kw_only=True):
    """A guest's: the rows of its lease are written, `Done`."""

    offset: int
    """Offset of the room that it was given."""
    contents: Contents
    report: bytes


class ReturnLease(WorkerCall, frozen=True, kw_only=True):
    """A guest's: it does not finish its lease, `Done`."""


class AskGuests(WorkerCall, frozen=True, kw_only=True):
    """Counts of guests and leases of this host's part: `GuestFigures`."""


class SendReport(WorkerCall, frozen=True, kw_only=True):
    """This worker's report of a step, or of its validation: `Done`."""

    step: int
    payload: bytes
    topic: ReportTopic = "report"


class Collect(WaitingCall, frozen=True, kw_only=True):
    """The lead's: the merged reports of all workers, or of all who validate, `Said`."""

    step: int
    topic: ReportTopic = "report"


class Announce(WorkerCall, frozen=True, kw_only=True):
    """The lead's: tell everyone, `Done`."""

    topic: str
    step: int
    payload: bytes


class Await(WaitingCall, frozen=True, kw_only=True):
    """What the lead announced: `Said`."""

    topic: str
    step: int


class RequestStop(WorkerCall, frozen=True, kw_only=True):
    """Somebody asked this worker to stop; the lead hears of it at once: `Done`."""


class IsStopRequested(WorkerCall, frozen=True, kw_only=True):
    """The lead's: whether any worker was asked to stop, `Flag`."""


WorkerRequest = (
    WorkerHello | SetStatus | AskStatus | ReserveRows | SealRows | GetRows | ReleaseRows | Drain
    | OpenVersion | ReserveChunk | SealChunk | CloseVersion | ReleaseVersion | NextChunk | ReleaseChunk | SkipVersion
    | OpenLeases | OpenValidation | NextDelivery | ReleaseDelivery | AskGuests
    | RequestLease | ReserveLease | DeliverLease | ReturnLease
    | TakeLease | TellOutcomes | HearOutcomes | SendReport | Collect | Announce | Await | RequestStop | IsStopRequested
)  # fmt: skip
