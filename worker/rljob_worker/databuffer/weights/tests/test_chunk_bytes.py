import numpy as np
import pyarrow as pa
import pytest
import xxhash

from rljob_worker.databuffer.weights.chunk_bytes import PIECE_BYTES, SCHEMA, checksum_of, copy_into, pieces_of
from rljob_worker.errors import PeerLost


def numbers(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint32).view(np.uint8)[:count].copy()


@pytest.mark.parametrize(
    ("num_bytes", "sizes"), [(0, []), (1, [1]), (PIECE_BYTES, [PIECE_BYTES]), (PIECE_BYTES + 1, [PIECE_BYTES, 1])]
)
def test_a_chunk_as_a_stream_and_back(num_bytes, sizes):
    data, room = numbers(num_bytes), np.zeros(num_bytes, np.uint8)
    pieces = list(pieces_of(data))
    assert [len(piece) for piece in pieces] == sizes and all(piece.schema == SCHEMA for piece in pieces)
    copy_into(room, pieces)
    assert np.array_equal(room, data)


def test_what_travels():
    assert PIECE_BYTES == 1_048_576 and pa.schema([pa.field("bytes", pa.uint8(), nullable=False)]) == SCHEMA


def test_a_stream_shares_the_memory_of_its_chunk():
    data = numbers(10)
    (piece,) = pieces_of(data)
    assert piece.column(0).to_numpy().ctypes.data == data.ctypes.data


def test_a_batch_that_begins_in_the_middle_of_its_memory_is_read_from_there():
    room = np.zeros(3, np.uint8)
    copy_into(room, [next(pieces_of(numbers(12))).slice(4, 3)])
    assert room.tolist() == numbers(12)[4:7].tolist()


def test_streams_of_the_wrong_length_are_a_lost_peer_and_nothing_is_written_outside():
    memory = np.zeros(8, np.uint8)
    with pytest.raises(PeerLost, match="more than the 4 bytes that were offered"):
        copy_into(memory[:4], [*pieces_of(numbers(3)), *pieces_of(np.full(2, 9, np.uint8))])
    assert memory[3:].tolist() == [0] * 5
    with pytest.raises(PeerLost, match="ended after 3 of 4 bytes"):
        copy_into(memory[:4], pieces_of(numbers(3)))


def test_a_batch_of_something_else_is_a_lost_peer():
    for other in (pa.record_batch({"a": pa.array([1, 2], pa.int64())}), pa.record_batch({"a": pa.array(["x"])})):
        with pytest.raises(PeerLost, match=r"has no bytes of a chunk, but \['a'\] of "):
            copy_into(np.zeros(2, np.uint8), [other])


def test_the_checksum_covers_data_and_table():
    data = numbers(100)
    assert checksum_of(data, b"t") == xxhash.xxh3_64_intdigest(data.tobytes(), xxhash.xxh3_64_intdigest(b"t"))
    other = data.copy()
    other[50] ^= 1
    assert len({checksum_of(data, b"t"), checksum_of(other, b"t"), checksum_of(data, b"u")}) == 3
