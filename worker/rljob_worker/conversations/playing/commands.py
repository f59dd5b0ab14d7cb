"""What the leader of a copy tells its peers: the next calls of the engine, and in the end the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rljob_worker.batch import Batch, Column, Indices
from rljob_worker.batch.arrow import from_arrow, to_arrow
from rljob_worker.batch.gather import offsets_of
from rljob_worker.conversations.playing.plays import AskedTurn
from rljob_worker.conversations.policy import TurnRequest
from rljob_worker.engines.protocols import CopyOfRanks
from rljob_worker.engines.rollout.requests import PartialResponses, Requests, Sampling
from rljob_worker.vision.pictures import PictureList

Rest = TypeVar("Rest")

NUM_PARTS = 18
"""Parts of encoded commands, behind their lengths."""
NOTHING_BEGUN = PartialResponses(Column.ragged([]), Column.ragged([], "float32"), Column.ragged([]))


@dataclass(frozen=True, slots=True, eq=False)
class EngineCommands:
    """The next calls of the engine, alike on all ranks of a copy."""

    row_ids: Indices
    """int64 [requests] that are submitted."""
    turns: Indices
    """int64 [requests]."""
    max_tokens: Indices
    """int64 [requests]."""
    prompt_of: Indices
    """int64 [requests], ascending."""
    prompts: Column
    """Ragged int64 [prompts]."""
    released: Indices
    """int64 [rows] that are held no longer."""
    aborted: Indices
    """int64 [rows] whose requests nobody waits for any more; they end before others begin."""
    is_last: bool
    """Whether nothing follows."""
    pictures: Column | None = None
    """Binary [prompts], as in `Requests`; None where nothing is shown."""
    states: Column | None = None
    """Ragged float32 [prompts], as in `Requests`; None where there are none."""
    heard: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 [rows] of which somebody wants to know what there is while they are decoded."""
    begun: PartialResponses | None = None
    """[requests], as in `Requests`; None where no turn has tokens already."""
    top_log_probs: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 [requests]: likely tokens that each asks for; empty where none does."""

    @staticmethod
    def of_turns(
        turns: Sequence[AskedTurn],
        released: Sequence[int],
        aborted: Sequence[int],
        *,
        heard: Sequence[int] = (),
        is_last: bool,
    ) -> EngineCommands:
        """Requests in the order of their prompts, equal ones once."""
        numbers: dict[bytes | int, int] = {}
        keys = [turn.row_id if (same := turn.request.identity) is None else same for turn in turns]
        prompt_of = [numbers.setdefault(key, len(numbers)) for key in keys]
        order = sorted(range(len(turns)), key=prompt_of.__getitem__)
        firsts = {prompt_of[at]: turns[at].request for at in reversed(range(len(turns)))}
        requests = [firsts[number] for number in range(len(firsts))]
        asked, shows = [turns[at] for at in order], any(request.pictures for request in requests)
        return EngineCommands(
            row_ids=np.array([turn.row_id for turn in asked], np.int64),
            turns=np.array([turn.number for turn in asked], np.int64),
            max_tokens=np.array([turn.max_tokens for turn in asked], np.int64),
            prompt_of=np.array([prompt_of[at] for at in order], np.int64),
            prompts=Column.ragged([request.sequence for request in requests]),
            pictures=Column.binary([PictureList.pack(item.pictures) for item in requests]) if shows else None,
            states=states_of(requests),
            begun=begun_of(asked),
            released=np.array(released, np.int64),
            aborted=np.array(aborted, np.int64),
            is_last=is_last,
            heard=np.array(heard, np.int64),
            top_log_probs=top_of(asked),
        )

    def requests(self, sampling: Sampling) -> Requests:
        """What the engine is asked for."""
        samplings: tuple[Sampling, ...] = (sampling,)
        sampling_of: Indices | None = None
        if len(self.top_log_probs):
            numbers, sampling_of = np.unique(self.top_log_probs, return_inverse=True)
            samplings = tuple(replace(sampling, top_log_probs=number) for number in numbers.tolist())
        return Requests(
            row_ids=self.row_ids,
            turns=self.turns,
            prompts=self.prompts,
            prompt_of=self.prompt_of,
            max_tokens=self.max_tokens,
            samplings=samplings,
            sampling_of=sampling_of,
            pictures=self.pictures,
            states=self.states,
            begun=self.begun,
        )

    def encoded(self) -> Indices:
        """int64 [n]: everything, behind the lengths of its parts."""
        pictures = Column.binary([]) if self.pictures is None else self.pictures
        blobs = pictures.values.tobytes()
        padded = np.frombuffer(blobs + b"\0" * (-len(blobs) % 8), np.int64)
        states = Column.ragged([], "float32") if self.states is None else self.states
        begun = NOTHING_BEGUN if self.begun is None else self.begun
        of_requests = (self.row_ids, self.turns, self.max_tokens, self.prompt_of)
        parts = [*of_requests, self.prompts.lengths, self.prompts.values, self.released, self.aborted]
        parts += [pictures.lengths, padded, states.lengths, _bits(states.values), begun.response_ids.lengths]
        parts += [begun.response_ids.values, _bits(begun.log_probs.values), begun.token_versions.values]
        parts += [self.heard, self.top_log_probs]
        head = [int(self.is_last), *(len(part) for part in parts)]
        return np.concatenate([np.array(head, np.int64), *parts])

    @staticmethod
    def decoded(values: Indices) -> EngineCommands:
        """What `encoded` gave."""
        is_last, *sizes = values[: NUM_PARTS + 1].tolist()
        parts = np.split(values[NUM_PARTS + 1 :], np.cumsum(sizes)[:-1])
        row_ids, turns, max_tokens, prompt_of, lengths, tokens, released, aborted, shown, padded, *measured = parts
        column = Column(tokens, offsets_of(lengths), "int64")
        blobs = np.ascontiguousarray(padded).view(np.uint8)[: int(shown.sum())]
        pictures = Column(blobs, offsets_of(shown), "binary") if len(shown) else None
        sizes_of_states, numbers, *begun, heard, top = measured
        states = Column(_floats(numbers), offsets_of(sizes_of_states), "float32") if len(sizes_of_states) else None
        return EngineCommands(
            row_ids, turns, max_tokens, prompt_of, column, released, aborted, bool(is_last), pictures, states,
            heard=heard, begun=_begun(*begun), top_log_probs=top,
        )  # fmt: skip


def states_of(requests: Sequence[TurnRequest]) -> Column | None:
    """Ragged float32 [requests]; None where no request has a state."""
    states = [request.row.state for request in requests]
    if all(state is None for state in states):
        return None
    nothing = np.empty(0, np.float32)
    return Column.ragged([nothing if state is None else state for state in states], "float32")


def top_of(turns: Sequence[AskedTurn]) -> Indices:
    """int64 [turns]: likely tokens that each asks for; empty where none does."""
    numbers = np.array([turn.request.top_log_probs for turn in turns], np.int64)
    return numbers if numbers.any() else numbers[:0]


def begun_of(turns: Sequence[AskedTurn]) -> PartialResponses | None:
    """What turns have already, [turns]; None where none has anything."""
    if not any(len(turn.begun) for turn in turns):
        return None
    return PartialResponses(
        response_ids=Column.ragged([turn.begun.tokens for turn in turns]),
        log_probs=Column.ragged([turn.begun.log_probs for turn in turns], "float32"),
        token_versions=Column.ragged([turn.begun.versions for turn in turns]),
    )


def _begun(lengths: Indices, tokens: Indices, log_probs: Indices, versions: Indices) -> PartialResponses | None:
    if not len(lengths):
        return None
    offsets = offsets_of(lengths)
    return PartialResponses(
        Column(tokens, offsets, "int64"),
        Column(_floats(log_probs), offsets, "float32"),
        Column(versions, offsets, "int64"),
    )


def _bits(values: NDArray[np.float32]) -> Indices:
    """The bits of a float32 in each integer."""
    return values.astype(np.float32).view(np.int32).astype(np.int64)


def _floats(bits: Indices) -> NDArray[np.float32]:
    """What `_bits` was given."""
    return bits.astype(np.int32).view(np.float32)


def shared_commands(copy: CopyOfRanks, work: Callable[[], EngineCommands]) -> EngineCommands:
    """The leader's, on all ranks of a copy. Every rank calls it alike."""
    if not copy.has_peers:
        return work()
    return EngineCommands.decoded(shared_integers(copy, lambda: work().encoded()))


def shared_batch(copy: CopyOfRanks, work: Callable[[], Batch]) -> Batch:
    """The leader's rows, on all ranks of a copy. Every rank calls it alike."""

    if not copy.has_peers:
        return work()

    def encoded() -> Indices:
        record = to_arrow(work())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, record.schema) as writer:
            writer.write_batch(record)
        data = sink.getvalue().to_pybytes()
        padded = data + b"\0" * (-len(data) % 8)
        return np.frombuffer(padded, np.int64)

    with pa.ipc.open_stream(shared_integers(copy, encoded).tobytes()) as reader:
        return from_arrow(reader.read_next_batch())


def shared_integers(copy: CopyOfRanks, work: Callable[[], Indices]) -> Indices:
    """The leader's int64 [n], on all ranks. A broadcast has float64, of which each holds 32 bits exactly."""
    kept = list[Indices]()

    def length() -> tuple[NDArray[np.float64], None]:
        kept.append(np.ascontiguousarray(work(), np.int64))
        return np.array([len(kept[0])], np.float64), None

    (number, _) = copy.from_leader((1,), length)
    halves, _ = copy.from_leader((2 * int(number[0]),), lambda: (kept[0].view(np.uint32).astype(np.float64), None))
    return halves.astype(np.uint32).view(np.int64)
