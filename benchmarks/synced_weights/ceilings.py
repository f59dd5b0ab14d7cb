"""Ceilings of a weight sync: its bytes moved without our code, and what one source and one receiver do to them."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from multiprocessing.connection import Connection

import torch

from rljob_worker.databuffer.rows.byte_stream import chunk_checksum
from rljob_worker.weights.chunks import pack_tensors
from synced_weights.model import tensors_of
from synced_weights.processes import median


class LocalSlots:
    """Slots in this process, with the checksum that a client makes."""

    slot_bytes = 16 << 20

    def __init__(self) -> None:
        self._slots = torch.ones(4, self.slot_bytes, dtype=torch.uint8)
        self._turn = 0

    def reserve(self, num_bytes: int) -> torch.Tensor:
        self._turn = (self._turn + 1) % 4
        return self._slots[self._turn][:num_bytes]

    def seal(self, table: bytes, num_bytes: int | None = None) -> None:
        chunk_checksum(self._slots[self._turn][:num_bytes].numpy(), table)


def copies(num_bytes: int, rounds: int) -> dict[str, float]:
    """Seconds on one core."""
    torch.set_num_threads(1)
    model, slots = tensors_of(num_bytes), LocalSlots()
    source = torch.ones(num_bytes, dtype=torch.uint8)
    return {
        "memcpy": memcpy(num_bytes, rounds),
        "write + checksum": median(lambda: pack_tensors(slots, iter(model.items())), rounds),
        "checksum": median(lambda: chunk_checksum(source.numpy(), b""), rounds),
    }


def memcpy(num_bytes: int, rounds: int) -> float:
    """Seconds of one copy in memory, on one core."""
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.ones(num_bytes, dtype=torch.uint8)
    return median(lambda: target.copy_(source), rounds)


def loopback(num_bytes: int, rounds: int, sources: int = 1) -> float:
    """Seconds of TCP connections from one process to another, each with its part of the bytes."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=drain, args=(theirs, num_bytes // sources, sources))
    process.start()
    data, address = torch.ones(num_bytes // sources, dtype=torch.uint8).numpy().data, ("127.0.0.1", ours.recv())
    connections = [socket.create_connection(address) for _ in range(sources)]

    def send() -> None:
        threads = [threading.Thread(target=connection.sendall, args=(data,)) for connection in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in threads:
            ours.recv()

    seconds = median(send, rounds)
    for connection in connections:
        connection.close()
    process.join()
    return seconds


def drain(connection: Connection, num_bytes: int, connections: int) -> None:
    """Read as many bytes as come on each, again and again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection.send(listener.getsockname()[1])
        speaking = threading.Lock()
        threads = [
            threading.Thread(target=_drain_one, args=(listener.accept()[0], num_bytes, connection, speaking))
            for _ in range(connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _drain_one(connection: socket.socket, num_bytes: int, control: Connection, speaking: threading.Lock) -> None:
    room, received = memoryview(bytearray(num_bytes)), 0
    while got := connection.recv_into(room[received:]):
        received = (received + got) % num_bytes
        if not received:
            with speaking:
                control.send("all")
