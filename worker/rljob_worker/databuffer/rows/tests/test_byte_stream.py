"""A chunk as a stream of record batches, its bounds and its checksum."""

import contextlib

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from rljob_worker.batch.arrow import array_over, numbers_of
from rljob_worker.databuffer.protocol.peer_side import RecordStream
from rljob_worker.databuffer.rows.byte_stream import BATCH_BYTES, Filling, chunk_checksum, stream_of
from rljob_worker.errors import PeerLost


def numbers(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint32).view(np.uint8)[:count].copy()


def fill(room: np.ndarray, *streams: RecordStream) -> int:
    filling = Filling(room, b"t")
    for stream in streams:
        for record, checksum in stream.records:
            filling.take(record, checksum)
    return filling.end()


@pytest.mark.parametrize("num_bytes", [0, 1, BATCH_BYTES, BATCH_BYTES + 1])
def test_a_chunk_as_a_stream_and_back(num_bytes):
    data, room = numbers(num_bytes), np.zeros(num_bytes, np.uint8)
    assert fill(room, stream_of(data)) == chunk_checksum(data, b"t")
    assert np.array_equal(room, data)


def test_a_stream_shares_the_memory_of_its_chunk():
    data = numbers(BATCH_BYTES + 3)
    records = [record for record, _ in stream_of(data).records]
    assert [record.num_rows for record in records] == [BATCH_BYTES, 3]
    assert all(np.shares_memory(numbers_of(record.column(0), "uint8"), data) for record in records)


def test_batches_follow_each_other():
    room = np.zeros(7, np.uint8)
    fill(room, stream_of(numbers(4)), stream_of(np.array([9, 8, 7], np.uint8)))
    assert room.tolist() == [*numbers(4).tolist(), 9, 8, 7]


def test_streams_of_the_wrong_length_are_a_lost_peer_and_nothing_is_written_outside():
    memory = np.zeros(8, np.uint8)
    with pytest.raises(PeerLost, match="more than the 4 bytes that were offered"):
        fill(memory[:4], stream_of(numbers(3)), stream_of(np.full(2, 9, np.uint8)))
    assert memory[3:].tolist() == [0] * 5
    with pytest.raises(PeerLost, match="ended after 3 of 4 bytes"):
        fill(memory[:4], stream_of(numbers(3)))


def test_a_flipped_bit_anywhere_in_a_record_batch_is_an_error_of_ours_or_of_arrow():
    """Others would be a bug; what is none of both is left to the checksum."""
    (record, _), *_ = stream_of(numbers(3)).records
    message = record.serialize().to_pybytes()
    for bit in range(8 * len(message)):
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(PeerLost, pa.ArrowException, OSError):
            Filling(np.zeros(8, np.uint8), b"").take(pa.ipc.read_record_batch(bytes(flipped), record.schema), b"")


def test_what_is_not_bytes_is_a_lost_peer():
    record = pa.RecordBatch.from_arrays([array_over(np.arange(4))], names=["other"])
    with pytest.raises(PeerLost, match="other columns came in the place of bytes"):
        Filling(numbers(4), b"").take(record, b"")


def test_the_checksum_covers_data_and_table():
    data = numbers(100)
    assert chunk_checksum(data, b"t") == xxhash.xxh3_64_intdigest(data.tobytes(), xxhash.xxh3_64_intdigest(b"t"))
    other = data.copy()
    other[50] ^= 1
    assert len({chunk_checksum(data, b"t"), chunk_checksum(other, b"t"), chunk_checksum(data, b"u")}) == 3
