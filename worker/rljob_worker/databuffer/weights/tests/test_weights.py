"""What a host does with messages, tickets and calls; streams that break; who is named when a wait runs out."""

from random import Random

import numpy as np
import pytest

from rljob_worker.databuffer.protocol.errors import Refused
from rljob_worker.databuffer.protocol.peer_side import ChunkOffered, ChunkTaken, ChunkTicket, SourceClosed
from rljob_worker.databuffer.protocol.worker_answers import ChunkLocation, Complete, Done, NotYet, Reservation
from rljob_worker.databuffer.protocol.worker_calls import (
    CloseVersion,
    NextChunk,
    OpenVersion,
    ReleaseChunk,
    ReserveChunk,
    SealChunk,
    SkipVersion,
)
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.rows.byte_stream import chunk_checksum, stream_of
from rljob_worker.databuffer.store.monitor import Monitor
from rljob_worker.databuffer.weights.arrivals import MAX_DAMAGES, STREAM_SECONDS
from rljob_worker.databuffer.weights.tests.network import EDGE, Network, routes_of
from rljob_worker.errors import DeadlineExceeded, PeerLost

TRAIN, ROLLOUT = Host("train", 0), Host("rollout", 0)
SOURCE, READER = WorkerId("train", 0), WorkerId("rollout", 0)
DATA = np.frombuffer(b"some weights", np.uint8)


def pair(**faults) -> Network:
    """One source, one host with one rank that receives, four slots of 64 KiB each."""
    return Network(routes_of((1, 1), (1, 1), "512Ki"), Random(0), **faults)


def opened(network: Network, version: int = 1) -> Network:
    assert network.buffers[TRAIN].open(SOURCE, OpenVersion(edge=EDGE, version=version)) == Done()
    return network


def reserve(network: Network, waited: float = 0.0, seconds: float = 10.0):
    request = ReserveChunk(edge=EDGE, version=1, waited=waited, seconds=seconds)
    return network.buffers[TRAIN].reserve(SOURCE, request)


def put(network: Network, damage: int = 0) -> None:
    """One chunk is reserved, written and sealed."""
    room = reserve(network)
    assert isinstance(room, Reservation)
    network.memories[TRAIN][room.offset : room.offset + len(DATA)] = DATA
    checksum = chunk_checksum(DATA, b"t") ^ damage
    request = SealChunk(edge=EDGE, version=1, offset=room.offset, num_bytes=len(DATA), table=b"t", checksum=checksum)
    assert network.buffers[TRAIN].seal(SOURCE, request) == Done()


def ask(network: Network, version: int = 1, waited: float = 0.0, seconds: float = 10.0):
    request = NextChunk(edge=EDGE, version=version, waited=waited, seconds=seconds)
    return network.buffers[ROLLOUT].next(READER, request)


def test_a_chunk_from_one_host_to_the_next_and_its_release():
    network = opened(pair())
    assert ask(network) == NotYet()
    put(network)
    assert network.buffers[TRAIN].close(SOURCE, CloseVersion(edge=EDGE, version=1)) == Done()
    assert not network.buffers[TRAIN].is_drained(SOURCE)
    network.settle()
    assert network.buffers[TRAIN].is_drained(SOURCE) and network.buffers[ROLLOUT].is_drained(READER)
    chunk = ask(network)
    assert chunk == ChunkLocation(source=0, index=0, offset=chunk.offset, num_bytes=12, table=b"t")
    assert network.memories[ROLLOUT][chunk.offset : chunk.offset + 12].tobytes() == b"some weights"
    assert network.num_held(ROLLOUT) == 1
    release = ReleaseChunk(edge=EDGE, version=1, source=0, index=0)
    assert network.buffers[ROLLOUT].release(READER, release) == Done() and network.num_held(ROLLOUT) == 0
    assert ask(network) == Complete(num_chunks=1)
    assert network.figures[ROLLOUT].fetched_bytes == {EDGE: 12} and network.figures[TRAIN].fetched_bytes[EDGE] == 0
    assert network.figures[TRAIN].sent_bytes == {EDGE: 12} and network.figures[ROLLOUT].sent_bytes[EDGE] == 0
    assert network.tickets == [(ROLLOUT, TRAIN, ChunkTicket(EDGE, 1, 0, 0))] and network.seconds == [
        STREAM_SECONDS
    ] == [60.0]


def test_slots_begin_where_the_arena_says():
    network = pair(first_slot=4096)
    put(opened(network))
    network.settle()
    assert ask(network).offset == 4096


def test_a_version_is_skipped():
    network = opened(pair())
    put(network)
    network.settle()
    assert network.buffers[ROLLOUT].skip(READER, SkipVersion(edge=EDGE, version=1)) == Done()
    assert network.num_held(ROLLOUT) == 0


def test_a_complete_version_lets_go_of_what_its_reader_still_held():
    network = opened(pair())
    put(network)
    network.buffers[TRAIN].close(SOURCE, CloseVersion(edge=EDGE, version=1))
    network.settle()
    assert isinstance(ask(network), ChunkLocation) and ask(network) == Complete(num_chunks=1)
    assert network.num_held(ROLLOUT) == 0


def test_eight_streams_that_break_do_not_shut_the_window():
    # four slots are all there are: the streams of four chunks break twice each, in the middle
    network = opened(pair(break_streams=1.0, most_faults=2))
    for _ in range(4):
        put(network)
    network.settle()
    assert len(network.breaks) == 8 and len(set(network.breaks)) == 4  # each chunk went into its own slot again
    read = set()
    for _ in range(8):
        read.add(index := ask(network).index)
        network.buffers[ROLLOUT].release(READER, ReleaseChunk(edge=EDGE, version=1, source=0, index=index))
        put(network)
        network.settle()
    assert read == set(range(8))
    assert len(network.breaks) == 2 * 12 and network.num_held(ROLLOUT) == 4


def test_pauses_between_streams_that_break_double_and_end_in_a_lost_peer():
    network = opened(pair(break_streams=1.0, most_faults=99, retry_seconds=5.0))
    put(network)
    words = (
        "chunk 0 of source 0 of weights/actor, version 1, on its way .* could not be had from host train-0 for 6.3 s"
    )
    with pytest.raises(PeerLost, match=f"{words}: the stream broke"):
        network.settle()
    # 0.1 0.3 0.7 1.5 3.1 4.7 6.3 s after the first, and 5 s are allowed
    assert network.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 1.6, 1.6] and len(network.tickets) == 8


def test_a_peer_that_refuses_is_not_asked_again():
    network = opened(pair())
    put(network)
    network.refuses = Refused("it has restarted")
    with pytest.raises(Refused):
        network.settle()
    assert len(network.tickets) == 1


def test_a_damaged_chunk_is_fetched_again_at_once():
    network = opened(pair(damage_streams=1.0, most_faults=2))
    put(network)
    network.settle()
    assert len(network.tickets) == 3 and isinstance(ask(network), ChunkLocation)


def test_a_chunk_that_stays_damaged_names_host_chunk_and_both_checksums():
    network = opened(pair())
    put(network, damage=1)
    right = chunk_checksum(DATA, b"t")
    words = f"chunk 0 of source 0 of .* came damaged from host train-0 3 times: checksum {right:016x}, expected "
    with pytest.raises(PeerLost, match=words + f"{right ^ 1:016x}"):
        network.settle()
    assert len(network.tickets) == MAX_DAMAGES == 3


def test_a_source_that_waits_too_long_for_a_slot_hears_who_keeps_them():
    network = opened(pair())
    for _ in range(4):
        put(network)
    assert reserve(network, waited=9.9) == NotYet()
    words = "rank 0 of group train waited 10.0 s for a slot of weights/actor, version 1: chunk 0 of source 0 .*"
    with pytest.raises(DeadlineExceeded, match=f"{words}not yet read by host rollout-0"):
        reserve(network, waited=10.0)


def test_a_reader_that_waits_too_long_hears_what_the_late_sources_do():
    network = Network(routes_of((1, 5), (1, 1), "4Mi"))
    assert ask(network, waited=9.9) == NotYet()
    network.buffers[ROLLOUT].announced(TRAIN, SourceClosed(EDGE, 1, 1, 0))
    network.buffers[ROLLOUT].announced(TRAIN, ChunkOffered(EDGE, 1, 0, 0, 5, b"", 0))
    with pytest.raises(DeadlineExceeded) as caught:
        ask(network, waited=10.0)
    last = "(host train-0) last said: stage update"
    assert str(caught.value) == (
        "rank 0 of group rollout (host rollout-0) waited 10.0 s for weights/actor, version 1: 4 of 5 sources have not "
        f"sent all of it; rank 0 of group train {last}; rank 2 of group train {last}; rank 3 of group train {last}; "
        "chunk 0 of source 0 of weights/actor, version 1, on its way"
    )


def test_what_is_no_edge_source_or_chunk_of_ours():
    network = opened(pair())
    with pytest.raises(PeerLost, match="there are no weights 'other' in this job"):
        network.buffers[ROLLOUT].announced(TRAIN, ChunkTaken("other", 1, 0, 0))
    with pytest.raises(PeerLost, match="host train-0 does not hold ChunkTicket"):
        network.buffers[TRAIN].offered(ChunkTicket(EDGE, 1, 0, 0))
    with pytest.raises(AssertionError, match="rank 1 of group train is not a source of weights/actor"):
        network.buffers[TRAIN].open(WorkerId("train", 1), OpenVersion(edge=EDGE, version=1))


def test_a_child_gets_the_bytes_of_its_slot():
    network = opened(pair())
    put(network)
    data = network.buffers[TRAIN].offered(ChunkTicket(EDGE, 1, 0, 0))
    assert data.tobytes() == b"some weights" and np.shares_memory(data, network.memories[TRAIN])
    assert [record.num_rows for record, _ in stream_of(data).records] == [12]


def test_calls_are_held_for_as_long_as_they_may_and_no_longer():
    held = []

    class Noting(Monitor):
        def wait(self, ready, seconds):
            held.append(seconds)

    network = opened(pair(monitor=Noting, held_seconds=1.0))
    for waited in (0.0, 9.5, 10.0 - 1e-9):
        ask(network, waited=waited)
        reserve(network, waited=waited)
    assert held == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.0, 0.0], abs=1e-6)
