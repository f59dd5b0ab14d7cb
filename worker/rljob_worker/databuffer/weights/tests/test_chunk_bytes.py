from collections.abc import Iterable

import numpy as np
import pytest
import xxhash

from rljob_worker.databuffer.protocol.streams import Held
from rljob_worker.databuffer.weights.chunk_bytes import Filling, checksum_of, portions_of
from rljob_worker.errors import PeerLost


def numbers(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint32).view(np.uint8)[:count].copy()


def fill(room: np.ndarray, portions: Iterable[Held]) -> None:
    filling = Filling(room)
    for each in portions:
        filling.take(each)
    filling.end()


def portion(data: np.ndarray) -> Held:
    return Held(b"", [data.data])


@pytest.mark.parametrize("num_bytes", [0, 1, 1 << 20])
def test_a_chunk_as_a_stream_and_back(num_bytes):
    data, room = numbers(num_bytes), np.zeros(num_bytes, np.uint8)
    fill(room, portions_of(data))
    assert np.array_equal(room, data)


def test_a_stream_shares_the_memory_of_its_chunk():
    data = numbers(10)
    (found,) = portions_of(data)
    (place,) = found.places
    assert np.frombuffer(place, np.uint8).ctypes.data == data.ctypes.data and found.num_bytes == 10


def test_portions_follow_each_other():
    room = np.zeros(7, np.uint8)
    fill(room, [portion(numbers(4)), portion(np.array([9, 8, 7], np.uint8))])
    assert room.tolist() == [*numbers(4).tolist(), 9, 8, 7]


def test_streams_of_the_wrong_length_are_a_lost_peer_and_nothing_is_written_outside():
    memory = np.zeros(8, np.uint8)
    with pytest.raises(PeerLost, match="more than the 4 bytes that were offered"):
        fill(memory[:4], [portion(numbers(3)), portion(np.full(2, 9, np.uint8))])
    assert memory[3:].tolist() == [0] * 5
    with pytest.raises(PeerLost, match="ended after 3 of 4 bytes"):
        fill(memory[:4], portions_of(numbers(3)))


def test_the_checksum_covers_data_and_table():
    data = numbers(100)
    assert checksum_of(data, b"t") == xxhash.xxh3_64_intdigest(data.tobytes(), xxhash.xxh3_64_intdigest(b"t"))
    other = data.copy()
    other[50] ^= 1
    assert len({checksum_of(data, b"t"), checksum_of(other, b"t"), checksum_of(data, b"u")}) == 3
