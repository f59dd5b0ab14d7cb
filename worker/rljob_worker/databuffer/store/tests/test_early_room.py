"""Room in the arena: who gets it, and what is taken back for it."""

from rljob_worker.databuffer.store.arena import PAGE_BYTES
from rljob_worker.databuffer.store.segments import Item, Segments


def item(what: str, number: int) -> Item:
    return Item("a->b", 1, what, number)


def test_early_rows_leave_no_holes_between_shares():
    segments = Segments(10 * PAGE_BYTES)
    early = segments.try_reserve_early(item("early rows of share", 0), 2 * PAGE_BYTES)
    share = segments.try_reserve(item("share", 0), 3 * PAGE_BYTES)
    assert early is not None and share is not None
    assert (early.offset, share.offset) == (8 * PAGE_BYTES, 0)
    assert segments.try_reserve(item("share", 1), 7 * PAGE_BYTES) is None  # the early rows are still coming
    segments.drop(early)
    last = segments.try_reserve(item("share", 1), 7 * PAGE_BYTES)
    assert last is not None and last.offset == 3 * PAGE_BYTES


def test_the_lowest_early_rows_are_taken_back_first_for_they_lie_next_to_the_shares():
    segments, taken = Segments(10 * PAGE_BYTES), list[int]()
    early = [segments.try_reserve_early(item("early rows of share", number), PAGE_BYTES) for number in range(4)]
    for number in (3, 0, 2, 1):  # as they have landed
        segment = early[number]
        assert segment is not None
        segments.may_take_back(segment, lambda number=number: taken.append(number))
    assert segments.try_reserve(item("share", 0), 8 * PAGE_BYTES) is not None
    assert taken == [3, 2]
    assert segments.memory.used == 10 * PAGE_BYTES
