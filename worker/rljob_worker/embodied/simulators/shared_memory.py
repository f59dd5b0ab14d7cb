"""Memory that a worker shares with one process of simulators: a file without a name, gone when nobody has it open.

A slot for each environment of the process. The process writes an observation into the slot, says in its answer where in
it the parts are, and does not touch it before it is asked for the next one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

SLOT_BYTES = 32 << 20
"""Address space of an observation; what nobody wrote to takes no memory."""


class ObservationMemory:
    """Slots in memory that two processes have mapped."""

    def __init__(self, descriptor: int, num_slots: int) -> None:
        """descriptor: of a file of `SLOT_BYTES` for each slot; it may be closed after."""
        self._map = mmap.mmap(descriptor, num_slots * SLOT_BYTES)

    @staticmethod
    def create(num_slots: int) -> tuple[ObservationMemory, int]:
        """New memory, and the descriptor by which another process gets it."""
        descriptor = os.memfd_create("rljob-observations", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, num_slots * SLOT_BYTES)
        return ObservationMemory(descriptor, num_slots), descriptor

    def write(self, slot: int, parts: Sequence[bytes]) -> list[int]:
        """Put bytes one behind another; their lengths. Raises ValueError for more than a slot holds."""
        total = sum(map(len, parts))
        if total > SLOT_BYTES:
            raise ValueError(f"an observation has {total} bytes, more than {SLOT_BYTES}; make its pictures smaller")
        at = slot * SLOT_BYTES
        for part in parts:
            self._map[at : at + len(part)] = part
            at += len(part)
        return [len(part) for part in parts]

    def read(self, slot: int, lengths: Sequence[int]) -> list[bytes]:
        """What `write` put there."""
        at, parts = slot * SLOT_BYTES, []
        for length in lengths:
            parts.append(self._map[at : at + length])
            at += length
        return parts

    def close(self) -> None:
        """Unmap it."""
        self._map.close()
