"""Bytes from some places to others."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.databuffer.protocol.streams import MAX_PLACES, Held, Places

sizes = st.lists(st.integers(0, 5), max_size=8)


def places_in(memory: bytearray, lengths: list[int]) -> list[memoryview]:
    """Neighbours, of these lengths."""
    view, found, at = memoryview(memory), [], 0
    for length in lengths:
        found.append(view[at : at + length])
        at += length
    return found


@given(sizes, st.data())
def test_bytes_are_brought_in_order_however_their_places_are_cut(lengths: list[int], data: st.DataObject):
    total = sum(lengths)
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=5)))
    others = [stop - first for first, stop in zip([0, *cuts], [*cuts, total], strict=True)]
    source, target = bytearray(range(total)), bytearray(total)
    held = Held(b"", places_in(source, lengths))
    assert held.num_bytes == total
    held.into(places_in(target, others))
    assert target == source


@given(sizes, st.data())
def test_places_are_done_with_from_the_first_on(lengths: list[int], data: st.DataObject):
    left, total = Places(places_in(bytearray(range(sum(lengths))), lengths)), sum(lengths)
    done = 0
    while left:
        assert b"".join(left.next) == bytes(range(done, total)) and left.first[0] == done
        count = data.draw(st.integers(1, total - done))
        left.went(count)
        done += count
    assert done == total


def test_one_call_takes_so_many_places():
    left = Places([memoryview(b"x")] * (MAX_PLACES + 1))
    assert len(left.next) == MAX_PLACES == 1024
    left.went(2)
    assert len(left.next) == MAX_PLACES - 1
