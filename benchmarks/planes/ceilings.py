"""Ceilings of the machine: the rows' bytes moved with nothing in between, each with the least that its way needs.

    memcpy             one process, array to array
    shared memory      the writer copies in, the reader copies out
    TCP                the writer sends from its arrays, the reader receives into its own
    Flight stream      the writer serves record batches that are views of its arrays, the reader copies them into place

Targets are kept between steps, so that no page of theirs is new.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from numpy.typing import NDArray

from planes.leftovers import shared_directory
from planes.rows import COLUMNS, NUM_COLUMNS, RowCase, RowsPart, part_of
from planes.systems import ONE_POD, TWO_PODS
from planes.teams import Team

CHUNK_BYTES = 4 << 20
"""Of a record batch: with 16 MiB this stream is slower."""


class Silent:
    """A writer or reader of one part."""

    def __init__(self, case: RowCase, source: Path, directory: Path, rank: int) -> None:
        self.case, self.directory, self.rank = case, directory, rank
        self.source = part_of(case, source, rank)
        self.size = len(self.source.columns[0])

    def put(self, step: int) -> None:
        return

    def get(self, step: int) -> None:
        return

    def copy_out(self) -> None:
        return

    def part(self) -> RowsPart:
        raise NotImplementedError

    def release(self, step: int) -> None:
        return


class Keeping(Silent):
    """A reader with arrays of its own; that it also maps the rows tells it how long they are."""

    def __init__(self, case: RowCase, source: Path, directory: Path, rank: int) -> None:
        super().__init__(case, source, directory, rank)
        self.target = np.ones((NUM_COLUMNS, self.size), np.float32)

    def part(self) -> RowsPart:
        return RowsPart(self.source.row_ids, self.source.lengths, list(self.target))


class Copies(Keeping):
    def get(self, step: int) -> None:
        for target, values in zip(self.target, self.source.columns, strict=True):
            target[:] = values


def _shared(role: Silent) -> NDArray[np.float32]:
    path = role.directory / f"shared-{role.rank}"
    with open(path, "ab") as file:
        file.truncate(NUM_COLUMNS * role.size * 4)
    return np.memmap(path, np.float32, "r+", shape=(NUM_COLUMNS, role.size))


class CopiesIn(Silent):
    def __init__(self, case: RowCase, source: Path, directory: Path, rank: int) -> None:
        super().__init__(case, source, directory, rank)
        self._shared = _shared(self)

    def put(self, step: int) -> None:
        for target, values in zip(self._shared, self.source.columns, strict=True):
            target[:] = values


class CopiesOut(Keeping):
    def __init__(self, case: RowCase, source: Path, directory: Path, rank: int) -> None:
        super().__init__(case, source, directory, rank)
        self._shared = _shared(self)

    def get(self, step: int) -> None:
        for target, values in zip(self.target, self._shared, strict=True):
            target[:] = values


class Sends(Silent):
    """Sends everything to the peer that has asked with one byte."""

    def __init__(self, case: RowCase, source: Path, directory: Path, rank: int) -> None:
        super().__init__(case, source, directory, rank)
        self._listener = socket.create_server(("127.0.0.1", 0))
        publish_text(self, str(self._listener.getsockname()[1]))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection = self._listener.accept()[0]
        while connection.recv(1):
            for column in self.source.columns:
                connection.sendall(column.view(np.uint8).data)


class Receives(Keeping):
    def __init__(self, case: RowCase, source: Path, directory: Path, rank: int) -> None:
        super().__init__(case, source, directory, rank)
        self._connection = socket.create_connection(("127.0.0.1", int(published_text(self))))

    def get(self, step: int) -> None:
        self._connection.sendall(b"x")
        room, done = self.target.reshape(-1).view(np.uint8).data, 0
        while done < len(room):
            done += self._connection.recv_into(room[done:])


class Streams(Silent):
    """A Flight server with one stream."""

    def __init__(self, case: RowCase, source: Path, directory: Path, rank: int) -> None:
        super().__init__(case, source, directory, rank)
        columns, per_chunk = self.source.columns, CHUNK_BYTES // 4 // NUM_COLUMNS
        table = pa.table(dict(zip(COLUMNS, map(pa.array, columns), strict=True)))

        class Server(flight.FlightServerBase):  # type: ignore[misc]
            def do_get(self, context: Any, ticket: Any) -> Any:
                batches: Iterator[Any] = iter(table.to_batches(max_chunksize=per_chunk))
                return flight.GeneratorStream(table.schema, batches)

        self._server = Server("grpc+tcp://127.0.0.1:0")
        publish_text(self, str(self._server.port))


class StreamReads(Keeping):
    def __init__(self, case: RowCase, source: Path, directory: Path, rank: int) -> None:
        super().__init__(case, source, directory, rank)
        self._client = flight.FlightClient(f"grpc+tcp://127.0.0.1:{published_text(self)}")

    def get(self, step: int) -> None:
        done = 0
        for chunk in self._client.do_get(flight.Ticket(b"")):
            size = chunk.data.num_rows
            for target, values in zip(self.target, chunk.data.columns, strict=True):
                target[done : done + size] = values.to_numpy()
            done += size


def publish_text(role: Silent, text: str) -> None:
    (role.directory / f"told-{role.rank}").write_text(text)


def published_text(role: Silent) -> str:
    return (role.directory / f"told-{role.rank}").read_text()


WAYS: dict[str, tuple[str, tuple[Callable[..., Silent], Callable[..., Silent]]]] = {
    "memcpy": (ONE_POD, (Silent, Copies)),
    "shared memory": (ONE_POD, (CopiesIn, CopiesOut)),
    "TCP": (TWO_PODS, (Sends, Receives)),
    "Flight stream": (TWO_PODS, (Streams, StreamReads)),
}


class Ceiling:
    """One of them."""

    def __init__(self, name: str, case: RowCase, source: Path) -> None:
        self.name = name
        self._stack = contextlib.ExitStack()
        directory = self._stack.enter_context(shared_directory())
        self._team = Team()
        writer, reader = WAYS[name][1]
        try:
            for kind, make in (("writer", writer), ("reader", reader)):
                for rank in range(case.num_writers):
                    self._team.add(kind, make, case, source, directory, rank)
                self._team.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def tell(self, action: str, step: int) -> list[dict[str, Any]]:
        return self._team.tell(action, step)

    def processes(self) -> Mapping[str, list[int]]:
        return self._team.processes()

    def close(self) -> None:
        self._team.close()
        self._stack.close()
