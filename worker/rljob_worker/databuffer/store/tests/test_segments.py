"""Who still reads a segment, who waits for its room, and what a waiter is told."""

import pytest

from rljob_worker.databuffer.rows.segment import plan_contents
from rljob_worker.databuffer.store.segment_files import Allocator
from rljob_worker.databuffer.store.segments import Item, SegmentReader, Segments, explain_late

ITEM = Item("a->b", 1, "part", 0)
OTHER = Item("a->b", 2, "part", 0)
THIRD = Item("a->b", 1, "share", 3)
HOST = SegmentReader("train-0", 2)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def segments(num_pages: int) -> Segments:
    return Segments(num_pages * 4096, Clock())


def test_a_segment_goes_when_its_last_reader_has_released_it():
    held = segments(4)
    segment = held.try_reserve(ITEM, 5000)
    assert segment is not None and (segment.offset, segment.num_bytes, segment.since) == (0, 8192, 1.0)
    held.set_readers(segment, [SegmentReader("train-0", 0), SegmentReader("train-1", 1)])
    held.release(segment, SegmentReader("train-0", 0))
    held.release(segment, SegmentReader("train-0", 0))  # an acknowledgement that was sent again
    assert held.memory.used == 8192 and segment in held.held()
    held.release(segment, SegmentReader("train-1", 1))
    assert held.memory.used == 0 and segment not in held.held() and held.held() == []


def test_a_segment_that_nobody_reads_goes_at_once_and_one_without_a_decision_stays():
    held = segments(4)
    segment = held.try_reserve(ITEM, 1)
    held.release(segment, HOST)
    assert held.memory.used == 4096 and segment.readers is None
    held.set_readers(segment, [])
    assert held.memory.used == 0


def test_readers_may_release_before_a_later_one_is_added():
    held = segments(4)
    segment = held.try_reserve(ITEM, 1)
    held.set_readers(segment, [HOST])
    held.add_readers(segment, [SegmentReader.rank(0), SegmentReader.rank(1)])
    held.release(segment, HOST)
    held.release(segment, SegmentReader.rank(0))
    assert held.memory.used == 4096
    held.release(segment, SegmentReader.rank(1))
    with pytest.raises(AssertionError, match="part 0 of edge a->b, step 1 has already gone"):
        held.add_readers(segment, [HOST])


def test_dropping_twice_leaves_what_has_taken_the_place():
    held = segments(1)
    first = held.try_reserve(ITEM, 1)
    held.drop(first)
    second = held.try_reserve(OTHER, 1)
    assert second.offset == first.offset
    held.drop(first)
    assert second in held.held() and first not in held.held() and held.memory.used == 4096


def test_the_oldest_comes_first():
    held = segments(4)
    first, second = held.try_reserve(ITEM, 1), held.try_reserve(OTHER, 1)
    held.drop(first)
    third = held.try_reserve(ITEM, 1)
    assert third.offset < second.offset and held.held() == [second, third]


# ---- waiting for room


def waiting(held: Segments, name: str, num_pages: int, served: list[str]) -> None:
    def attempt() -> bool:
        segment = held.try_reserve(Item(name, 1, "share", 0), num_pages * 4096)
        if segment is not None:
            served.append(name)
        return segment is not None

    held.when_room(attempt)


def test_whoever_waits_for_room_is_served_in_order_and_once():
    held, served = segments(2), list[str]()
    first, second = held.try_reserve(ITEM, 1), held.try_reserve(OTHER, 1)
    waiting(held, "one", 1, served)
    waiting(held, "two", 1, served)
    assert served == []
    held.drop(second)
    assert served == ["one"]
    held.drop(first)
    assert served == ["one", "two"]


def test_a_waiter_that_fits_at_once_does_not_wait():
    held, served = segments(1), list[str]()
    waiting(held, "one", 1, served)
    assert served == ["one"]


def test_a_small_one_does_not_wait_for_a_large_one():
    held, served = segments(3), list[str]()
    kept = [held.try_reserve(ITEM, 1) for _ in range(3)]
    waiting(held, "large", 3, served)
    waiting(held, "small", 1, served)
    held.drop(kept[2])
    assert served == ["small"]


def test_room_that_an_attempt_gives_back_serves_those_before_it():
    held, served = segments(2), list[str]()
    first, second = held.try_reserve(ITEM, 1), held.try_reserve(OTHER, 1)
    waiting(held, "large", 2, served)

    def gives_back() -> bool:
        if second in held.held():
            return False
        held.drop(first)
        return True

    held.when_room(gives_back)
    held.drop(second)
    assert served == ["large"]


# ---- words


def test_a_full_arena_names_size_and_late_reader():
    held = segments(4)
    for step in range(1, 5):
        segment = held.try_reserve(Item("a->b", step, "part", 0), 4096)
        held.set_readers(segment, [HOST, SegmentReader.rank(1)])
    assert held.explain_full(Item("a->b", 9, "share", 1), 5000, 5.04) == (
        "no room for share 1 of edge a->b, step 9: 5,000 bytes needed, largest free range 0 of 16,384 after 5.0 s. "
        "Oldest of 4 segments: "
        "part 0 of edge a->b, step 1, not yet read by rank 1 of this host, host train-0 (share 2); "
        "part 0 of edge a->b, step 2, not yet read by rank 1 of this host, host train-0 (share 2); "
        "part 0 of edge a->b, step 3, not yet read by rank 1 of this host, host train-0 (share 2). "
        "If the reader is healthy, raise dataBuffer.memory"
    )


# ---- on disk


def with_disk(num_pages: int, disk_pages: int, spilled: list[tuple[str, int]] | None = None) -> Segments:
    """Memory at pages 0, 1, ...; the disk at pages 100, 101, ..."""
    heard = [] if spilled is None else spilled
    disk = Allocator(disk_pages * 4096, 100 * 4096)
    return Segments(num_pages * 4096, Clock(), disk=disk, spilled=lambda edge, size: heard.append((edge, size)))


def test_what_finds_no_room_in_memory_is_opened_on_disk_and_the_next_one_in_memory_again():
    spilled: list[tuple[str, int]] = []
    held = with_disk(2, 4, spilled)
    first, second, third = (held.try_reserve(Item("a->b", step, "part", 0), 8192) for step in (1, 2, 3))
    assert [segment.offset // 4096 for segment in (first, second, third)] == [0, 100, 102]
    assert held.try_reserve(Item("a->b", 4, "part", 0), 1) is None and spilled == [("a->b", 8192)] * 2
    held.drop(first)
    assert held.try_reserve(Item("a->b", 4, "part", 0), 1).offset == 0
    assert (held.memory.used, held.disk.used) == (4096, 16384)
    held.drop(second)
    assert held.disk.used == 8192 and [segment.item.step for segment in held.held()] == [3, 4]


def test_whoever_waits_gets_what_comes_free_on_disk():
    held, got = with_disk(1, 2), []
    held.try_reserve(ITEM, 4096)
    on_disk = held.try_reserve(OTHER, 8192)
    held.when_room(lambda: bool(got.append(held.try_reserve(THIRD, 8192)) or got[-1]))
    assert got == [None]
    held.drop(on_disk)
    assert got[-1].offset == 100 * 4096


def test_most_that_can_ever_have_room_is_what_is_left_in_one_of_both():
    held = with_disk(3, 4)
    in_memory, on_disk = held.try_reserve(ITEM, 8192), held.try_reserve(OTHER, 12288)
    # one page is left in memory, one on disk
    assert held.most_beside([]) == 4 * 4096
    assert held.most_beside([in_memory]) == 4 * 4096 and held.most_beside([on_disk]) == 3 * 4096
    assert held.most_beside([in_memory, on_disk]) == 4096
    assert segments(3).most_beside([]) == 3 * 4096


def test_a_full_disk_is_named_beside_the_memory():
    held = with_disk(1, 2)
    assert held.explain_full(ITEM, 9000, 1.0).endswith(
        "9,000 bytes needed, largest free range 4,096 of 4,096 in memory and 8,192 of 8,192 on disk after 1.0 s. "
        "Oldest of 0 segments: none. If the reader is healthy, raise dataBuffer.spill.limit"
    )


def test_segments_know_since_when():
    held = Segments(8192)
    assert held.try_reserve(ITEM, 1).since <= held.try_reserve(OTHER, 1).since


def test_an_empty_arena_says_so():
    assert "Oldest of 0 segments: none." in segments(1).explain_full(ITEM, 8192, 0.0)


def test_who_keeps_a_segment():
    held = segments(4)
    segment = held.try_reserve(ITEM, 1)
    assert explain_late(segment) == "part 0 of edge a->b, step 1, still being written"
    segment.contents = plan_contents(0, {})
    assert explain_late(segment) == "part 0 of edge a->b, step 1, whose readers are not known yet"


def test_readers_are_ranks_of_this_host_or_other_hosts():
    assert SegmentReader.rank(3).is_rank and not HOST.is_rank
    assert [str(reader) for reader in sorted([HOST, SegmentReader.rank(3)])] == [
        "rank 3 of this host",
        "host train-0 (share 2)",
    ]
