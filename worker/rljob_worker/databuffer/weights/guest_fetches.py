"""Chunks of weights on their way to a guest: fetched from who offered them, again after a stream that broke."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol import peer_side as say
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.rows.byte_stream import Bytes, Filling
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.weights.guest_version import GuestChunk, GuestVersion
from rljob_worker.databuffer.work import Work
from rljob_worker.errors import DeadlineExceeded, PeerLost

STREAM_SECONDS = 60.0
PAUSE_SECONDS = 0.2
"""After a stream that broke."""
MAX_DAMAGES = 3


class ChunkFetches:
    """Streams of one guest.

    is_due: under the lock, whether a chunk is still to come from a host. arrived: called with a chunk that is here to
    the last byte, who gave it, and its bytes.
    """

    def __init__(
        self,
        *,
        monitor: Monitor,
        links: Links,
        streams: Work,
        later: Callable[[float, Callable[[], None]], None],
        retry_seconds: float,
        is_due: Callable[[GuestVersion, GuestChunk, Host], bool],
        arrived: Callable[[GuestVersion, GuestChunk, Host, Bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monitor, self._links, self._streams, self._later = monitor, links, streams, later
        self._retry_seconds, self._clock = retry_seconds, clock
        self._is_due, self._arrived = is_due, arrived

    def submit(self, version: GuestVersion, chunk: GuestChunk) -> None:
        """Fetch a chunk from who offered it."""
        holder = chunk.holder
        what = f"fetching chunk {chunk.key} of {version.edge}, version {version.number}, from host {holder}"
        self._streams.submit(what, lambda: self._fetch(version, chunk, holder))

    def _fetch(self, version: GuestVersion, chunk: GuestChunk, holder: Host) -> None:
        offer = chunk.offer
        # not straight into the slot: that may be another chunk's before a slow holder is done
        private = Filling(room := np.empty(offer.num_bytes, np.uint8), offer.table)
        try:
            ticket = say.ChunkTicket(offer.edge, offer.version, offer.source, offer.index)
            self._links.stream(holder, ticket, STREAM_SECONDS, private.take)
            result = private.end()
        except (PeerLost, DeadlineExceeded) as error:
            self._broke(version, chunk, holder, error)
            return
        if result == offer.checksum:
            self._arrived(version, chunk, holder, room)
        else:
            chunk.num_damages += 1
            self._broke(version, chunk, holder, PeerLost(f"it came damaged {chunk.num_damages} times"))

    def _broke(
        self, version: GuestVersion, chunk: GuestChunk, holder: Host, error: PeerLost | DeadlineExceeded
    ) -> None:
        """Once more a little later, as long as it is the same one that gives it. Raises PeerLost when a source does
        not."""
        now = self._clock()
        with self._monitor.look():
            if not self._is_due(version, chunk, holder):
                return
            chunk.broken_since = now if chunk.broken_since is None else chunk.broken_since
            is_lost = now - chunk.broken_since >= self._retry_seconds or chunk.num_damages >= MAX_DAMAGES
            if is_lost:
                chunk.broken_since, chunk.num_damages = None, 0
        if is_lost:
            lost = PeerLost(f"chunk {chunk.key} of {version.edge} could not be had from host {holder}: {error}")
            if not self._links.is_guest(holder):
                raise lost
            self._links.end_guest(holder, lost)
            return
        self._later(PAUSE_SECONDS, lambda: self._submit_again(version, chunk, holder))

    def _submit_again(self, version: GuestVersion, chunk: GuestChunk, holder: Host) -> None:
        with self._monitor.look():
            if self._is_due(version, chunk, holder):
                self.submit(version, chunk)


def taken(offer: say.ChunkOffered) -> say.ChunkTaken:
    """That a chunk is here, or not needed."""
    return say.ChunkTaken(offer.edge, offer.version, offer.source, offer.index)
