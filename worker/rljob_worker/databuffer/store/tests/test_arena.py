"""The allocator: ranges never overlap, and everything given back is one range again."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rljob_worker.databuffer.store.arena import PAGE_BYTES, Allocator, rounded

PAGES = 32


def test_first_fit_by_hand():
    arena = Allocator(10 * PAGE_BYTES)
    first, second, third = (arena.allocate(3 * PAGE_BYTES) for _ in range(3))
    assert (first, second, third) == (0, 3 * PAGE_BYTES, 6 * PAGE_BYTES)
    assert arena.allocate(2 * PAGE_BYTES) is None
    arena.free(0)
    arena.free(3 * PAGE_BYTES)
    assert arena.largest_free == 6 * PAGE_BYTES  # joined
    assert arena.allocate(4 * PAGE_BYTES) == 0
    assert arena.allocate(1) == 4 * PAGE_BYTES  # a byte takes a page


class Leases(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.arena = Allocator(PAGES * PAGE_BYTES)
        self.taken: dict[int, int] = {}

    @rule(pages=st.integers(1, PAGES), odd=st.integers(0, PAGE_BYTES - 1))
    def allocate(self, pages, odd):
        size = pages * PAGE_BYTES - odd
        offset = self.arena.allocate(size)
        if offset is None:
            assert self.arena.largest_free < rounded(size)
        else:
            self.taken[offset] = rounded(size)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.taken)))
        del self.taken[offset]
        self.arena.free(offset)

    @invariant()
    def ranges_are_apart_and_add_up(self):
        ends = 0
        for offset, length in sorted(self.taken.items()):
            assert offset >= ends and offset % PAGE_BYTES == 0
            ends = offset + length
        assert ends <= PAGES * PAGE_BYTES
        assert self.arena.used == sum(self.taken.values())
        if not self.taken:
            assert self.arena.largest_free == PAGES * PAGE_BYTES


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=40, stateful_step_count=30)
