"""Where segments lie in a place: first fit over a list of free ranges, pure arithmetic without memory behind it."""

from __future__ import annotations

from bisect import bisect_left

PAGE_BYTES = 4096


class Allocator:
    """Hands out page-aligned ranges of [start, start + capacity).

    The lowest free range that fits is taken, so that a step like the one before reuses pages already mapped and warm.
    Neighbouring free ranges are joined as they are given back: fragmentation never lasts.
    """

    def __init__(self, capacity: int, start: int = 0) -> None:
        self.start = start
        self.capacity = capacity // PAGE_BYTES * PAGE_BYTES
        self._free: list[tuple[int, int]] = (
            [(start, self.capacity)] if self.capacity else []
        )  # (offset, length), rising
        self._taken: dict[int, int] = {}

    @property
    def used(self) -> int:
        return sum(self._taken.values())

    @property
    def largest_free(self) -> int:
        return max((length for _, length in self._free), default=0)

    def allocate(self, num_bytes: int) -> int | None:
        """Offset of a fresh range, or None when no free range is long enough."""
        length = rounded(num_bytes)
        for position, (offset, free) in enumerate(self._free):
            if free >= length:
                rest = [(offset + length, free - length)] if free > length else []
                self._free[position : position + 1] = rest
                self._taken[offset] = length
                return offset
        return None

    def free(self, offset: int) -> None:
        """Give a range back; it must have been handed out."""
        length = self._taken.pop(offset)
        position = bisect_left(self._free, (offset, 0))
        start, stop = offset, offset + length
        if position < len(self._free) and self._free[position][0] == stop:
            stop += self._free.pop(position)[1]
        if position and sum(self._free[position - 1]) == start:
            position -= 1
            start = self._free.pop(position)[0]
        self._free.insert(position, (start, stop - start))


def rounded(num_bytes: int) -> int:
    """Bytes a segment really takes: whole pages, at least one."""
    return max(1, -(-num_bytes // PAGE_BYTES)) * PAGE_BYTES
