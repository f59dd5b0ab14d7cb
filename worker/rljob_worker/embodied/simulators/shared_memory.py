"""Memory that a worker shares with one process of simulators: a file without a name, gone when nobody has it open.

A slot for each environment of the process. The worker puts the actions of a call at its beginning; the process writes
what they came to over them, and does not touch the slot before it is asked for the next call.

    u32 steps, u32 parts, u32 seen, u8 is over, u8 has a state, 8 bytes of digest
    f64 reward of each step
    u8  success of each step: 0, 1, or 2 where it said nothing
    u32 length of each part
    parts: the state, where there is one, then pictures. The first `seen` are the observation, others of earlier steps
"""

from __future__ import annotations

import mmap
import os
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import Struct
from struct import error as StructError

import numpy as np
from numpy.typing import NDArray

from rljob_worker.embodied.simulators.settings import Frame, SimulatorFailed

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

    def put_actions(self, slot: int, actions: NDArray[np.float64]) -> None:
        """Write the actions of a call that the process will be sent."""
        at = slot * SLOT_BYTES
        self._map[at : at + actions.nbytes] = actions.tobytes()

    def actions(self, slot: int, steps: int, dimensions: int) -> NDArray[np.float64]:
        """What `put_actions` put there, [steps, dimensions]."""
        numbers = np.frombuffer(self._map, np.float64, steps * dimensions, slot * SLOT_BYTES)
        return numbers.reshape(steps, dimensions).copy()

    def write(self, slot: int, frame: Frame) -> None:
        """Put what a call came to there. Raises ValueError for more than a slot holds."""
        state = () if frame.state is None else (frame.state.tobytes(),)
        parts = (*state, *frame.pictures, *frame.earlier)
        lengths = [len(part) for part in parts]
        successes = [_SAID_NOTHING if item is None else item for item in frame.successes]
        tail, size = _tail(frame.num_steps, len(parts)), sum(lengths)
        total = _HEAD.size + tail.size + size
        if total > SLOT_BYTES:
            raise ValueError(f"an observation has {total} bytes, more than {SLOT_BYTES}; make its pictures smaller")
        at, digest = slot * SLOT_BYTES, bytes.fromhex(frame.digest)
        num_seen = len(parts) - len(frame.earlier)
        _HEAD.pack_into(self._map, at, frame.num_steps, len(parts), num_seen, frame.is_over, bool(state), digest)
        tail.pack_into(self._map, at + _HEAD.size, *frame.rewards, *successes, *lengths)
        self._map[at + total - size : at + total] = b"".join(parts)

    def read(self, slot: int) -> Frame:
        """What `write` put there. Raises SimulatorFailed where somebody else has written."""
        try:
            return self._frame(slot * SLOT_BYTES)
        except (ValueError, IndexError, StructError) as error:
            raise SimulatorFailed("raised", f"the memory of its observations has no observation: {error}") from error

    def _frame(self, at: int) -> Frame:
        steps, num_parts, num_seen, is_over, has_state, digest = _HEAD.unpack_from(self._map, at)
        tail = _tail(steps, num_parts)
        numbers = tail.unpack_from(self._map, at + _HEAD.size)
        ends = list(accumulate(numbers[2 * steps :], initial=at + _HEAD.size + tail.size))
        if ends[-1] > at + SLOT_BYTES:
            raise ValueError(f"its parts end {ends[-1] - at} bytes behind its beginning, of {SLOT_BYTES}")
        parts = [self._map[begin:end] for begin, end in pairwise(ends)]
        return Frame(
            pictures=tuple(parts[has_state:num_seen]),
            state=np.frombuffer(parts[0], np.float32) if has_state else None,
            rewards=numbers[:steps],
            successes=tuple(None if item == _SAID_NOTHING else bool(item) for item in numbers[steps : 2 * steps]),
            is_over=is_over,
            digest=digest.hex(),
            earlier=tuple(parts[num_seen:]),
        )

    def close(self) -> None:
        """Unmap it."""
        self._map.close()


_HEAD = Struct("=III??8s")
_SAID_NOTHING = 2


@lru_cache(maxsize=64)
def _tail(steps: int, num_parts: int) -> Struct:
    """Rewards, successes and lengths behind the head."""
    return Struct(f"={steps}d{steps}B{num_parts}I")
