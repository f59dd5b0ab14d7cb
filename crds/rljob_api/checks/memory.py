"""Does a step fit into the data buffers?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.checks.subject import Subject, problem
from rljob_api.pipeline.room import Room, layouts_of, room_of
from rljob_api.vocabulary.problem import Problem
from rljob_api.vocabulary.quantity import covering_quantity, format_bytes, parse_quantity


def check_data_buffer(subject: Subject) -> Iterator[Problem]:
    """A host has room for one step with every row at its longest."""
    memory = subject.spec.data_buffer.memory
    layouts = layouts_of(subject.resolution, subject.placed)
    rooms = {group: room_of(subject.resolution, group, layouts) for group in subject.group_names}
    group, room = max(rooms.items(), key=lambda item: item[1].total)
    if room.total <= parse_quantity(memory):
        return
    parts = [f"{format_bytes(room.puts)} of rows that it puts", f"{format_bytes(room.maps)} of rows that it gets"]
    parts += [f"{format_bytes(room.weights)} of weights"] * (room.weights > 0)
    message = (
        f"a step whose rows are all at their longest takes {format_bytes(room.total)} on a host of group {group}: "
        f"{', '.join(parts)}, and what arranging them costs"
    )
    yield problem("spec.dataBuffer.memory", memory, message, _fix(room))


def _fix(room: Room) -> str:
    fix = f"Set dataBuffer.memory to at least {covering_quantity(room.total)}"
    if room.uncounted:
        fix += f", and more for {', '.join(room.uncounted)}, whose size the job does not say"
    if room.puts + room.maps > room.weights:
        fix += "; or lower data.batchSize, or add replicas"
    return f"{fix}."
