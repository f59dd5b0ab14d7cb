"""Messages as MessagePack, checked against their types as they are read: what is malformed is refused by name."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import xxhash

from rljob_worker.databuffer.protocol.contents import Contents
from rljob_worker.databuffer.protocol.errors import Damaged, Malformed
from rljob_worker.databuffer.protocol.peer_side import Envelope, PartTicket, Question, Ticket
from rljob_worker.databuffer.protocol.worker_answers import Done, Failed, Introduction, TurnedAway, WorkerAnswer
from rljob_worker.databuffer.protocol.worker_calls import WorkerRequest

T = TypeVar("T")

CHECKSUM_BYTES = 8

_ENCODER = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct | Contents | dict[str, Any] | list[Any]) -> bytes:
    return _ENCODER.encode(message)


def sealed(body: bytes) -> bytes:
    """A message with its checksum in front: XXH3, 64 bits."""
    return xxhash.xxh3_64_digest(body) + body


def opened(data: Any, what: str) -> memoryview:
    """The other way round. Raises Damaged."""
    view = memoryview(data).cast("B")
    checksum, body = view[:CHECKSUM_BYTES], view[CHECKSUM_BYTES:]
    if checksum != xxhash.xxh3_64_digest(body):
        raise Damaged(f"{what} of {len(body):,} bytes was damaged on the way")
    return body


class _Reads:
    """A decoder of one kind of messages."""

    def __init__(self, name: str, kind: Any) -> None:
        self._name = name
        self._decoder = msgspec.msgpack.Decoder(kind)

    def __call__(self, data: Any) -> Any:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"{len(data):,} bytes are not {self._name}: {error}") from error


read_envelope = _Reads("an envelope of messages", Envelope)
read_ticket = _Reads("a ticket", Ticket)
read_part_ticket = _Reads("a ticket of a reader", PartTicket)
read_contents = _Reads("a table of contents", Contents)
read_packed = _Reads("packed rows", list[tuple[bytes, bytes]])
read_question = _Reads("a question", Question)
read_request = _Reads("a request of a worker", WorkerRequest)
read_introduction = _Reads("an introduction", Introduction)
read_admission = _Reads("an answer to an introduction", Done | TurnedAway)
read_answer = _Reads("an answer to a worker", WorkerAnswer | Failed)
