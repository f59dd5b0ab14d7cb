"""Do the steps under way fit into the data buffers?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.checks.subject import Subject, problem
from rljob_api.pipeline.buffer_capacity import BufferCapacity, capacity_of, layouts_of
from rljob_api.v1alpha1.infrastructure import DataBufferSpec
from rljob_api.vocabulary.problem import Problem
from rljob_api.vocabulary.quantity import covering_quantity, format_bytes, parse_quantity


def check_data_buffer(subject: Subject, route_bytes: int = 0) -> Iterator[Problem]:
    """A host has room for a step with every row at its longest, and for as many more as generation is ahead, in memory
    or on disk. route_bytes: of a token's routes, where that is known."""
    layouts = layouts_of(subject.resolution, subject.placed)
    rooms = {group: capacity_of(subject.resolution, group, layouts, route_bytes) for group in subject.group_names}
    buffer = subject.spec.data_buffer
    if buffer.spill is not None and parse_quantity(buffer.spill.limit) == 0:
        fix = "Set it to what may go to disk, or leave dataBuffer.spill out."
        yield problem("spec.dataBuffer.spill.limit", buffer.spill.limit, "a file without bytes has no room", fix)
        return
    lacking = {group: lack for group, room in rooms.items() if (lack := _lacking(buffer, room)) is not None}
    if not lacking:
        return
    group, (path, result, needed) = max(lacking.items(), key=lambda item: item[1][2])
    room = rooms[group]
    message = _message(group, room)
    if buffer.spill is not None:
        message += f"; on disk also as much as the largest part of it, {format_bytes(room.largest)}"
    yield problem(f"spec.{path}", result, message, _fix(path, needed, room))


def _message(group: str, room: BufferCapacity) -> str:
    """What a host of a group has to hold."""
    steps, times, num_steps = "a step whose rows are all at their longest takes", "", room.num_steps
    if num_steps > 1:
        ahead = f"with rollout.maxStaleness {num_steps - 1} rows of {num_steps} steps wait"
        steps, times = f"{ahead}, which all at their longest take", f"{num_steps} x "
    parts = [f"{times}{format_bytes(room.puts)} of rows that it puts"]
    parts += [f"{times}{format_bytes(room.maps)} of rows that it gets"]
    parts += [f"{format_bytes(room.leases)} of leases"] * (room.leases > 0)
    parts += [f"{format_bytes(room.weights)} of weights"] * (room.weights > 0)
    size = format_bytes(room.total)
    return f"{steps} {size} on a host of group {group}: {', '.join(parts)}, and what arranging them costs"


def _lacking(buffer: DataBufferSpec, room: BufferCapacity) -> tuple[str, str, int] | None:
    """(path, value, what it has to be at least) of what is too small. Weights and what controls rows stay in memory."""
    memory = parse_quantity(buffer.memory)
    if room.total <= memory:
        return None
    if buffer.spill is None:
        return "dataBuffer.memory", buffer.memory, room.total
    if memory < room.least_memory:
        return "dataBuffer.memory", buffer.memory, room.least_memory
    if parse_quantity(buffer.spill.limit) < room.least_spill(memory):
        return "dataBuffer.spill.limit", buffer.spill.limit, room.least_spill(memory)
    return None


def _fix(path: str, needed: int, room: BufferCapacity) -> str:
    fix = f"Set {path} to at least {covering_quantity(needed)}"
    if room.uncounted:
        fix += f", and more for {', '.join(room.uncounted)}, whose size the job does not say"
    if room.num_steps * (room.puts + room.maps) > room.weights:
        lower = "data.batchSize or rollout.maxStaleness" if room.num_steps > 1 else "data.batchSize"
        fix += f"; or lower {lower}, or add replicas"
    return f"{fix}."
