"""The controller of the classic way: `controller.py PODS TOKEN_BYTES STEPS`, in a namespace of its own.

All pods' rows come here, are shared out by their tokens with what our data buffers use, and go out. Sockets and nothing
else: rows are received into one buffer, and leave as views of it, so that no byte is copied or translated on the way.
At the end it says the most memory that it had.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from rljob_worker.databuffer.routes.repartition import balanced

PORT = 7003
PIECES = 512
"""Buffers of one sendmsg (IOV_MAX is 1,024)."""


class Line:
    """The connection of one pod."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._reader = connection.makefile("rb")
        self.index = int(self._reader.readline())
        self._room = bytearray()

    def receive(self, token_bytes: int) -> tuple[NDArray[np.int64], list[memoryview]]:
        """Lengths of the rows, and the rows."""
        lengths = np.array(json.loads(self._reader.readline()), np.int64)
        ends = np.cumsum(lengths) * token_bytes
        if len(self._room) < ends[-1]:
            self._room = bytearray(int(ends[-1]))
        view = memoryview(self._room)[: int(ends[-1])]
        assert self._reader.readinto(view) == len(view)  # type: ignore[attr-defined]
        return lengths, [view[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]

    def send(self, lengths: Sequence[int], rows: Sequence[memoryview]) -> None:
        self._connection.sendall(json.dumps(lengths).encode() + b"\n")
        for first in range(0, len(rows), PIECES):
            pieces = list(rows[first : first + PIECES])
            while pieces:
                sent = self._connection.sendmsg(pieces)
                while pieces and sent >= len(pieces[0]):
                    sent -= len(pieces.pop(0))
                if pieces:
                    pieces[0] = pieces[0][sent:]


def main() -> None:
    num_pods, token_bytes, steps = map(int, sys.argv[1:])
    with socket.create_server(("0.0.0.0", PORT), backlog=num_pods) as listener:
        print("ready", flush=True)
        lines = sorted((Line(listener.accept()[0]) for _ in range(num_pods)), key=lambda line: line.index)
    with ThreadPoolExecutor(num_pods) as pool:
        for _ in range(steps):
            step(pool, lines, token_bytes)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)
    sys.stdin.read()  # whoever measures looks at this process until the last pod is through


def step(pool: ThreadPoolExecutor, lines: Sequence[Line], token_bytes: int) -> None:
    """All in, shared out, all out."""
    parts = list(pool.map(lambda line: line.receive(token_bytes), lines))
    lengths = np.concatenate([part[0] for part in parts])
    rows = [row for part in parts for row in part[1]]
    row_ids, one_batch = np.arange(len(rows)), np.zeros(len(rows), np.int64)
    shares = balanced(row_ids, row_ids, lengths, one_batch, parts=len(lines))

    def send(line: Line) -> None:
        mine = np.flatnonzero(shares == line.index)
        line.send(lengths[mine].tolist(), [rows[row] for row in mine])

    list(pool.map(send, lines))


if __name__ == "__main__":
    main()
