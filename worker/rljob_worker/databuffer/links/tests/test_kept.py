"""Connections that nobody uses now."""

import socket
from collections.abc import Iterator

import pytest

from rljob_worker.databuffer.links.kept import Kept


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    made = [socket.socketpair() for _ in range(3)]
    yield made
    for ours, theirs in made:
        ours.close()
        theirs.close()


def is_closed(connection: socket.socket) -> bool:
    return connection.fileno() == -1


def test_the_connection_used_last_is_the_next(pairs: list[tuple[socket.socket, socket.socket]]):
    kept = Kept(2)
    first, second, third = (ours for ours, _ in pairs)
    assert kept.take() is None
    for each in (first, second, third):
        kept.keep(each)
    assert is_closed(third)  # two are enough
    assert (kept.take(), kept.take(), kept.take()) == (second, first, None)


def test_connections_that_have_ended_are_not_taken(pairs: list[tuple[socket.socket, socket.socket]]):
    kept = Kept(3)
    for ours, _ in pairs:
        kept.keep(ours)
    pairs[2][1].close()
    pairs[1][1].sendall(b"nobody asked")
    assert kept.take() is pairs[0][0]
    assert is_closed(pairs[2][0]) and is_closed(pairs[1][0])


def test_after_the_end_nothing_is_kept(pairs: list[tuple[socket.socket, socket.socket]]):
    kept = Kept(3)
    kept.keep(pairs[0][0])
    kept.hang_up()
    assert is_closed(pairs[0][0])
    kept.keep(pairs[1][0])
    kept.close()
    kept.keep(pairs[2][0])
    assert is_closed(pairs[1][0]) and is_closed(pairs[2][0]) and kept.take() is None
