"""Questions to many peers at once, for error messages."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

import msgspec

from rljob_worker.databuffer.links.connection import Connection
from rljob_worker.databuffer.protocol.codec import encode
from rljob_worker.databuffer.protocol.errors import Damaged, Malformed
from rljob_worker.databuffer.protocol.peer_side import Answer, Question
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.work import THREADS, Threads
from rljob_worker.errors import PeerLost

_read_answer = msgspec.msgpack.Decoder(Answer)


def ask_all(
    connections: Mapping[Host, Connection], question: Question, seconds: float, threads: Threads = THREADS
) -> dict[Host, Answer | PeerLost]:
    """What each answers within `seconds`; PeerLost for those that do not, or whose answer is an error.

    Every peer gets a thread of its own: of many that hang, none keeps another from being asked.
    """
    if not connections:
        return {}
    body = encode(question)
    pool = threads.pool("questions", len(connections))
    futures = {host: pool.submit(_ask, connection, body, seconds) for host, connection in connections.items()}
    threads.wait(futures.values(), seconds)
    pool.shutdown(wait=False)
    return {host: _told(connections[host].whom, future, seconds) for host, future in futures.items()}


def _ask(connection: Connection, body: bytes, seconds: float) -> Answer:
    try:
        data = connection.act("ask", body, seconds)
    except Damaged:  # messages are repeated by their link, streams by who fetches
        data = connection.act("ask", body, seconds)
    try:
        answer: Answer = _read_answer.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{connection.whom} gave {len(data):,} bytes that are no answer: {error}") from error
    return answer


def _told(whom: str, future: Future[Answer], seconds: float) -> Answer | PeerLost:
    if not future.done():
        return PeerLost(f"{whom} did not answer in {seconds:.1f} s")
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, PeerLost) else PeerLost(f"{whom}: {error}")
