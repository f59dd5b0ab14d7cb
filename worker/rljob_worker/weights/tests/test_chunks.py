"""Tensors packed into chunks and unpacked again."""

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.errors import PeerLost
from rljob_worker.weights.chunks import ALIGNMENT, TensorPiece, pack_tensors, unpack_tensors

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64]


class Chunk:
    """A chunk as a reader gets it."""

    def __init__(self, table: bytes, data: torch.Tensor) -> None:
        self.table, self.data = table, data.clone()


class Slots:
    """One slot, from which every chunk is copied out when it is sealed."""

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.room = torch.zeros(slot_bytes, dtype=torch.uint8)
        self.chunks: list[Chunk] = []

    def reserve(self, num_bytes: int) -> torch.Tensor:
        assert num_bytes == self.slot_bytes
        return self.room

    def seal(self, table: bytes, num_bytes: int | None = None) -> None:
        self.chunks.append(Chunk(table, self.room[:num_bytes]))


def chunks_of(tensors, slot_bytes: int) -> list[Chunk]:
    slots = Slots(slot_bytes)
    pack_tensors(slots, tensors)
    return slots.chunks


def table_of(chunk: Chunk) -> list[TensorPiece]:
    return msgspec.msgpack.decode(chunk.table, type=list[TensorPiece])


def piece(name="w", dtype="float32", shape=(4,), start=0, num_bytes=16, offset=0, data=16) -> Chunk:
    table = msgspec.msgpack.encode([TensorPiece(name, dtype, shape, start, num_bytes, offset)])
    return Chunk(table, torch.arange(data, dtype=torch.uint8))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 7), max_size=3), st.sampled_from(DTYPES)), max_size=6),
    st.integers(1, 6),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_any_tensors_survive_any_size_of_slots_number_of_sources_and_order(layout, slots, num_sources, random):
    tensors = {f"t{i}": torch.randn(shape).mul(9).to(dtype) for i, (shape, dtype) in enumerate(layout)}
    chunks = []
    for source in range(num_sources):
        mine = [item for i, item in enumerate(tensors.items()) if i % num_sources == source]
        chunks += chunks_of(iter(mine), slots * ALIGNMENT)
    random.shuffle(chunks)
    back = {name: tensor.clone() for name, tensor in unpack_tensors(chunks)}
    assert set(back) == set(tensors)
    for name, received in back.items():
        sent = tensors[name]
        assert received.dtype == sent.dtype and received.shape == sent.shape and torch.equal(received, sent)


def test_a_source_that_reuses_its_memory_does_no_harm():
    def reusing():
        buffer = torch.zeros(4)
        for value in (1.0, 2.0):
            yield f"t{value}", buffer.fill_(value)

    received = [tensor.tolist() for _, tensor in unpack_tensors(chunks_of(reusing(), 1024))]
    assert received == [[1.0] * 4, [2.0] * 4]


def test_tensors_share_a_chunk_aligned_and_one_that_fits_in_a_chunk_is_not_cut():
    # 10, 100 and 30 bytes in slots of 128: 10 at 0; 100 does not fit behind it at 64; 30 does not fit behind 100 at 128
    tensors = [(str(n), torch.zeros(n, dtype=torch.uint8)) for n in (10, 100, 30)]
    result = [[(p.name, p.start, p.num_bytes, p.offset) for p in table_of(c)] for c in chunks_of(tensors, 128)]
    assert result == [[("10", 0, 10, 0)], [("100", 0, 100, 0)], [("30", 0, 30, 0)]]
    tensors = [(str(n), torch.zeros(n, dtype=torch.uint8)) for n in (10, 64)]
    (chunk,) = chunks_of(tensors, 128)
    assert [(p.name, p.offset) for p in table_of(chunk)] == [("10", 0), ("64", 64)] and len(chunk.data) == 128


def test_a_tensor_longer_than_a_chunk_is_cut_and_what_follows_shares_its_last():
    # 100 float32 = 400 bytes in slots of 128: 128, 128, 128, 16, and 4 bytes more at 64
    chunks = chunks_of([("w", torch.arange(100.0)), ("v", torch.ones(1))], 128)
    assert [len(chunk.data) for chunk in chunks] == [128, 128, 128, 68]
    assert [(p.name, p.start, p.num_bytes, p.offset) for p in table_of(chunks[3])] == [
        ("w", 384, 16, 0),
        ("v", 0, 4, 64),
    ]
    assert table_of(chunks[1])[0] == TensorPiece("w", "float32", (100,), 128, 128, 0)


def test_nothing_is_sent_of_no_tensors_and_an_empty_tensor_is_one():
    assert chunks_of([], 128) == []
    ((name, tensor),) = unpack_tensors(chunks_of([("e", torch.empty(0, 3, dtype=torch.bfloat16))], 128))
    assert (name, tensor.shape, tensor.dtype) == ("e", (0, 3), torch.bfloat16)


def test_a_tensor_that_is_not_contiguous_is_sent_as_it_reads():
    tensor = torch.arange(6.0).reshape(2, 3).T
    ((_, back),) = unpack_tensors(chunks_of([("t", tensor)], 128))
    assert torch.equal(back, tensor)


def test_a_whole_tensor_is_a_view_of_its_chunk():
    (chunk,) = chunks_of([("w", torch.arange(4.0))], 128)
    ((_, tensor),) = unpack_tensors([chunk])
    assert tensor.data_ptr() == chunk.data.data_ptr()


def test_tensors_that_were_cut_have_each_others_memory_as_far_as_it_goes():
    """400, 320 and 400 bytes one after another; 800 take more, for which the 400 make way; 600 and 320 find room in
    those; 4 lie in their chunk."""
    sizes = {"a": 100, "b": 80, "c": 100, "d": 200, "e": 150, "f": 1, "g": 80}
    chunks = chunks_of(((name, torch.full((size,), float(size))) for name, size in sizes.items()), 128)
    places = {}
    for name, tensor in unpack_tensors(chunks):
        assert tensor.tolist() == [float(sizes[name])] * sizes[name]
        places[name] = tensor  # kept, so that no allocator gives it to others
    result = {name: tensor.data_ptr() for name, tensor in places.items()}
    assert result["a"] == result["b"] == result["c"] != result["d"] == result["e"] == result["g"] != result["f"]


def test_tensors_that_are_cut_side_by_side_have_memory_of_their_own():
    before = chunks_of([("u", torch.ones(40))], 128)
    one, other = chunks_of([("w", torch.zeros(40))], 128), chunks_of([("v", torch.ones(40))], 128)
    read = {name: tensor.clone() for name, tensor in unpack_tensors([*before, one[0], other[0], one[1], other[1]])}
    assert read["w"].sum() == 0 and read["v"].sum() == 40


def test_a_stream_that_ends_inside_tensors_is_a_lost_peer():
    chunks = chunks_of([("w", torch.arange(100.0))], 128) + chunks_of([("v", torch.arange(50.0))], 128)
    with pytest.raises(PeerLost, match="ended inside w: 384 of 400 bytes, and 1 more$"):
        list(unpack_tensors(chunks[:3] + chunks[4:5]))
    with pytest.raises(PeerLost, match="ended inside w: 272 of 400 bytes$"):
        list(unpack_tensors(chunks[1:4]))


def test_tensors_and_bytes_that_come_twice_are_refused_by_name():
    chunks = chunks_of([("w", torch.arange(100.0))], 128)
    with pytest.raises(PeerLost, match="the weights w came twice"):
        list(unpack_tensors([*chunks, chunks[0]]))
    with pytest.raises(PeerLost, match="bytes 128 to 256 of the weights w came twice"):
        list(unpack_tensors([chunks[1], chunks[0], chunks[1]]))
    # bytes 0 to 8 of 16 are there; 4 to 12 overlap them from behind, and 8 to 16 do not
    first, second = piece(num_bytes=8), piece(start=8, num_bytes=8)
    with pytest.raises(PeerLost, match="bytes 4 to 12"):
        list(unpack_tensors([first, piece(start=4, num_bytes=8)]))
    with pytest.raises(PeerLost, match="bytes 4 to 12"):
        list(unpack_tensors([second, piece(start=4, num_bytes=8)]))
    assert len(list(unpack_tensors([second, first]))) == 1


@pytest.mark.parametrize(
    "lie", [{"start": 1}, {"num_bytes": 17, "data": 17}, {"data": 15}, {"offset": 1}, {"dtype": "float64", "start": 20}]
)
def test_a_table_that_is_not_so_is_refused(lie):
    with pytest.raises(PeerLost, match="a table of weights that is not so: .*'w'"):
        list(unpack_tensors([piece(**lie)]))


@pytest.mark.parametrize("table", [b"", b"{", msgspec.msgpack.encode([("w", "int8", (1,), -1, 1, 0)])])
def test_bytes_that_are_no_table_are_refused(table):
    with pytest.raises(PeerLost, match=f"{len(table)} bytes are not a table of weights"):
        list(unpack_tensors([Chunk(table, torch.zeros(4, dtype=torch.uint8))]))


def test_a_type_that_is_none_is_refused():
    with pytest.raises(PeerLost, match="w have a type that is none: 'nn'"):
        list(unpack_tensors([piece(dtype="nn")]))
