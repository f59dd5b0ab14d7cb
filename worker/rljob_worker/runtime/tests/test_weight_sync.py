import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.errors import PeerLost
from rljob_worker.runtime.weight_sync import pack, unpack

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 7), max_size=3), st.sampled_from(DTYPES)), max_size=6),
    st.integers(8, 200),
)
def test_any_tensors_survive_any_chunk_size(layout, chunk_bytes):
    tensors = [(f"t{i}", torch.randn(shape).mul(9).to(dtype)) for i, (shape, dtype) in enumerate(layout)]
    back = list(unpack(pack(iter(tensors), chunk_bytes)))
    assert [name for name, _ in back] == [name for name, _ in tensors]
    for (_, sent), (_, received) in zip(tensors, back, strict=True):
        assert received.dtype == sent.dtype and received.shape == sent.shape and torch.equal(received, sent)


def test_a_source_that_reuses_its_memory_does_no_harm():
    def reusing():
        buffer = torch.zeros(4)
        for value in (1.0, 2.0):
            yield f"t{value}", buffer.fill_(value)

    assert [tensor.tolist() for _, tensor in unpack(pack(reusing(), 1 << 20))] == [[1.0] * 4, [2.0] * 4]


def test_no_chunk_is_larger_than_asked():
    # 100 float32 = 400 bytes in chunks of at most 64: ceil(400 / 64) = 7
    chunks = list(pack([("w", torch.arange(100.0))], 64))
    assert len(chunks) == 7 and max(len(chunk["data"].values) for chunk in chunks) == 64


def test_a_stream_that_ends_inside_a_tensor_is_a_lost_peer():
    chunks = list(pack([("w", torch.arange(100.0))], 64))
    with pytest.raises(PeerLost, match="inside w: 384 of 400 bytes"):
        list(unpack(chunks[:-1]))
