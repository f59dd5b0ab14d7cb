"""Chunks on their way from the parent: fetched by jobs, again when a stream breaks or bytes are damaged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.errors import Elsewhere, Refused
from rljob_worker.databuffer.protocol.peer_side import ChunkTicket
from rljob_worker.databuffer.rows.byte_stream import Bytes, Filling
from rljob_worker.databuffer.weights.chunk import WeightsChunk
from rljob_worker.databuffer.weights.tree import Fetch
from rljob_worker.databuffer.work import Timer, Work
from rljob_worker.errors import DeadlineExceeded, PeerLost

FIRST_PAUSE_SECONDS = 0.1
"""After a stream that broke; each pause is twice the last."""
LONGEST_PAUSE_SECONDS = 1.6
MAX_DAMAGES = 3
"""A chunk is given up when it has come damaged this often."""
STREAM_SECONDS = 60.0
"""Longest that the bytes of a chunk may take."""


class Arrivals:
    """Copies chunks into their slots. A chunk keeps its slot however often it is fetched."""

    def __init__(
        self,
        memory: Bytes,
        links: Links,
        jobs: Work,
        later: Timer,
        arrived: Callable[[WeightsChunk], None],
        *,
        retry_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """arrived: called with each chunk whose bytes are in its slot, and right.   retry_seconds: a chunk is given up
        when its streams have been breaking for as long."""
        self._memory = memory
        self._links = links
        self._jobs = jobs
        self._later = later
        self._arrived = arrived
        self._retry_seconds, self._clock = retry_seconds, clock

    def slot(self, chunk: WeightsChunk) -> Bytes:
        """The memory of a chunk that has a slot."""
        return self._memory[chunk.offset : chunk.offset + chunk.offer.num_bytes]

    def begin(self, fetch: Fetch) -> None:
        """Fetch a chunk as soon as a thread is free."""
        self._jobs.submit(f"fetching {fetch.chunk} from host {fetch.host}", partial(self._fetch, fetch))

    def _fetch(self, fetch: Fetch) -> None:
        chunk, offer = fetch.chunk, fetch.chunk.offer
        ticket = ChunkTicket(offer.edge, offer.version, offer.source, offer.index)
        try:
            filling = Filling(self.slot(chunk), offer.table)
            self._links.stream(fetch.host, ticket, STREAM_SECONDS, filling.take)
            result = filling.end()
        except Refused:
            raise
        except (PeerLost, DeadlineExceeded) as error:
            self._later.after(self._pause_after_break(fetch, error), partial(self.begin, fetch))
            return
        if result == offer.checksum:
            self._arrived(chunk)
        else:
            count_damage(fetch, result)
            self.begin(fetch)

    def _pause_after_break(self, fetch: Fetch, error: PeerLost | DeadlineExceeded) -> float:
        """Seconds until a chunk whose stream broke is fetched again. Raises PeerLost when that is in vain."""
        chunk, now = fetch.chunk, self._clock()
        chunk.breaks += 1
        chunk.broken_since = now if chunk.broken_since is None else chunk.broken_since
        seconds = now - chunk.broken_since
        # links know when looking for an address takes too long
        if seconds >= self._retry_seconds and not isinstance(error, Elsewhere):
            raise PeerLost(f"{chunk} could not be had from host {fetch.host} for {seconds:.1f} s: {error}") from error
        return float(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (chunk.breaks - 1)))


def count_damage(fetch: Fetch, result: int) -> None:
    """A chunk came damaged. Raises PeerLost when it did so too often."""
    chunk = fetch.chunk
    chunk.damages += 1
    if chunk.damages == MAX_DAMAGES:
        raise PeerLost(
            f"{chunk} came damaged from host {fetch.host} {MAX_DAMAGES} times: checksum {result:016x}, expected "
            f"{chunk.offer.checksum:016x}"
        )
