"""A worker's ends of weights, against a data buffer that notes what it is asked."""

from collections import deque

import numpy as np
import pytest

from rljob_worker.databuffer.protocol.worker_answers import ChunkLocation, Complete, Done, Reservation, WeightsOfWorker
from rljob_worker.databuffer.protocol.worker_calls import (
    CloseVersion,
    NextChunk,
    OpenVersion,
    ReleaseChunk,
    ReleaseVersion,
    ReserveChunk,
    SealChunk,
    SkipVersion,
)
from rljob_worker.databuffer.rows.byte_stream import chunk_checksum
from rljob_worker.databuffer.weights.client import WeightsClient

EDGE = "weights/actor"


class OwnBuffer:
    """Answers waits from a list, and everything else with `Done`; a wait is asked a second time after 2.5 s."""

    def __init__(self, *answers) -> None:
        self.answers = deque(answers)
        self.asked = []

    def call(self, request):
        self.asked.append(request)
        return Done()

    def poll(self, request, seconds):
        self.asked += [request(0.0), request(2.5)]
        assert seconds == 60.0
        return self.answers.popleft()


def client_of(own: OwnBuffer, source: int | None = 2) -> tuple[WeightsClient, np.ndarray]:
    memory = np.zeros(100, np.uint8)
    readable = memory.view()
    readable.flags.writeable = False
    ends = {EDGE: WeightsOfWorker(source=source, receives=True, slot_bytes=16)}
    return WeightsClient(own, ends, 60.0, writable=memory, readable=readable), memory


def test_sending_opens_reserves_seals_and_closes():
    own = OwnBuffer(Reservation(offset=32), Reservation(offset=64))
    client, memory = client_of(own)
    with client.sending(7, EDGE) as stream:
        assert stream.slot_bytes == 16
        stream.reserve(4)[:] = [1, 2, 3, 4]
        stream.seal(b"one")
        stream.reserve(16)[:2] = [8, 9]
        stream.seal(b"two", 2)
        assert stream.num_bytes == 6
    assert memory[32:36].tolist() == [1, 2, 3, 4] and memory[64:66].tolist() == [8, 9]
    waits = [ReserveChunk(edge=EDGE, version=7, waited=waited, seconds=60.0) for waited in (0.0, 2.5)]
    one, two = np.array([1, 2, 3, 4], np.uint8), np.array([8, 9], np.uint8)
    assert own.asked == [
        OpenVersion(edge=EDGE, version=7),
        *waits,
        SealChunk(edge=EDGE, version=7, offset=32, num_bytes=4, table=b"one", checksum=chunk_checksum(one, b"one")),
        *waits,
        SealChunk(edge=EDGE, version=7, offset=64, num_bytes=2, table=b"two", checksum=chunk_checksum(two, b"two")),
        CloseVersion(edge=EDGE, version=7),
    ]


def test_a_version_that_fails_in_the_middle_is_never_closed():
    own = OwnBuffer(Reservation(offset=0))
    client, _ = client_of(own)
    with pytest.raises(KeyError), client.sending(7, EDGE) as stream:
        stream.reserve(1)
        raise KeyError
    assert not any(isinstance(request, CloseVersion) for request in own.asked)


def test_what_only_we_can_get_wrong():
    client, _ = client_of(OwnBuffer(Reservation(offset=0), Reservation(offset=16)))
    with client.sending(7, EDGE) as stream:
        with pytest.raises(AssertionError, match="17 bytes in a slot of 16"):
            stream.reserve(17)
        stream.reserve(16)
        with pytest.raises(AssertionError, match="the chunk before is not sealed"):
            stream.reserve(1)
    client, _ = client_of(OwnBuffer(), source=None)
    with pytest.raises(AssertionError, match="this worker is not a source of weights/actor"), client.sending(7, EDGE):
        pass


def test_receiving_releases_each_chunk_when_the_next_is_asked_for():
    chunks = [ChunkLocation(source=i, index=3 + i, offset=8 * i, num_bytes=4, table=b"t%d" % i) for i in range(2)]
    own = OwnBuffer(*chunks, Complete(num_chunks=2))
    client, memory = client_of(own)
    memory[8:12] = [5, 6, 7, 8]
    waits = [NextChunk(edge=EDGE, version=7, waited=waited, seconds=60.0) for waited in (0.0, 2.5)]
    stream = client.receive(7, EDGE)
    first = next(stream)
    assert (first.source, first.index, first.table, len(first.data)) == (0, 3, b"t0", 4) and own.asked == waits
    second = next(stream)
    assert second.data.tolist() == [5, 6, 7, 8] and not second.data.flags.writeable
    assert list(stream) == []
    releases = [ReleaseChunk(edge=EDGE, version=7, source=i, index=3 + i) for i in range(2)]
    assert own.asked == [*waits, releases[0], *waits, releases[1], *waits]


def test_to_stop_early_is_to_skip_the_rest():
    own = OwnBuffer(ChunkLocation(source=0, index=0, offset=0, num_bytes=4, table=b""))
    stream = client_of(own)[0].receive(7, EDGE)
    next(stream)
    stream.close()
    assert own.asked[-1] == SkipVersion(edge=EDGE, version=7)


def test_a_version_is_released_by_its_number():
    own = OwnBuffer()
    client_of(own)[0].release_version(6, EDGE)
    assert own.asked == [ReleaseVersion(edge=EDGE, version=6)]
