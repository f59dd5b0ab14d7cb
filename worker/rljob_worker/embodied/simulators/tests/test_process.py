"""Which call a process is sent, and what is in the memory that it shares."""

from __future__ import annotations

import asyncio
import os
import struct
from typing import cast

import numpy as np
import pytest

from rljob_worker.embodied.simulators.process import Call, PendingRequest, SimulatorProcess
from rljob_worker.embodied.simulators.settings import Frame, SimulatorFailed
from rljob_worker.embodied.simulators.shared_memory import SLOT_BYTES, ObservationMemory
from rljob_worker.sandbox.guardian.user_processes import UserProcess


def process_with(*slots: int) -> SimulatorProcess:
    """One that has not been sent anything, with calls that wait: of these slots, numbered from 0 on."""
    loop = asyncio.new_event_loop()
    nobody = cast(UserProcess, None)
    memory, descriptor = ObservationMemory.create(1)
    os.close(descriptor)
    process = SimulatorProcess(nobody, memory, loop.create_future(), [])
    process.waiting += [
        PendingRequest(number, Call({}, 1.0), slot, loop.create_future()) for number, slot in enumerate(slots)
    ]
    loop.close()
    return process


def sent(process: SimulatorProcess) -> list[int]:
    """Numbers of the calls that it is sent now."""
    return [request.number for request in iter(process.next_to_send, None)]


def test_a_process_has_its_next_call_before_it_has_answered_the_first() -> None:
    process = process_with(0, 1, 2)
    assert sent(process) == [0, 1]
    process.sent.popleft()
    assert sent(process) == [2]


def test_an_environment_has_one_call_at_a_time() -> None:
    process = process_with(0, 0, 1)
    assert sent(process) == [0]
    process.sent.popleft()
    assert sent(process) == [1, 2]


def test_a_call_that_nobody_waits_for_is_not_sent() -> None:
    process = process_with(0, 1, 2)
    process.waiting[0].future.cancel()
    assert sent(process) == [1, 2]


def test_a_lost_process_was_at_the_first_call_that_it_had_not_answered() -> None:
    process = process_with(0, 1, 2)
    sent(process)
    assert [(request.number, was_at_it) for request, was_at_it in process.take_unanswered()] == [
        (0, True),
        (1, False),
        (2, False),
    ]
    assert not process.sent and not process.waiting


def test_what_a_call_came_to_is_read_as_it_was_written() -> None:
    memory, descriptor = ObservationMemory.create(2)
    os.close(descriptor)
    state = np.arange(3, dtype=np.float32)
    written = Frame((b"left", b"right"), state, (0.5, -1.0), (None, True), True, "00112233445566ff", (b"before",))
    memory.put_actions(1, np.full((2, 3), 0.25))
    assert memory.actions(1, 2, 3).tolist() == np.full((2, 3), 0.25).tolist()
    memory.write(1, written)
    read = memory.read(1)
    assert read.state is not None and read.state.tolist() == [0.0, 1.0, 2.0]
    assert (read.pictures, read.earlier, read.digest) == (written.pictures, written.earlier, written.digest)
    assert (read.rewards, read.successes, read.is_over) == (written.rewards, written.successes, True)


@pytest.mark.parametrize(
    ("steps", "parts", "flags", "length"),
    [
        (2**32 - 1, 2**32 - 1, b"\0\0", 0),  # more than a slot holds
        (0, 1, b"\0\0", 2**32 - 1),  # a part that ends behind the slot
        (0, 1, b"\0\1", 3),  # a state of three bytes
        (0, 0, b"\0\1", 0),  # a state that is not there
    ],
)
def test_what_others_write_into_the_memory_costs_the_episode(steps: int, parts: int, flags: bytes, length: int) -> None:
    memory, descriptor = ObservationMemory.create(1)
    os.pwrite(descriptor, struct.pack("=III2s8sI", steps, parts, parts, flags, b"", length), 0)
    os.close(descriptor)
    with pytest.raises(SimulatorFailed, match="has no observation"):
        memory.read(0)


def test_an_observation_that_is_too_large_is_refused() -> None:
    memory, descriptor = ObservationMemory.create(1)
    os.close(descriptor)
    with pytest.raises(ValueError, match="make its pictures smaller"):
        memory.write(0, Frame((bytes(SLOT_BYTES),), None, (), (), False, "00" * 8))
