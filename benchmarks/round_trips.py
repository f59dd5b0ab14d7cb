"""What a request to another process costs with nothing in it: frames over a UNIX socket, and Flight's do_action.

    python benchmarks/round_trips.py [--repeats 500]

300 bytes there and back, medians and 95th percentiles in microseconds: one after the other, and each after 20 ms in
which both processes slept, as those of a job do between two steps. A put of rows is two requests, a get is one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from rljob_worker import frames

BODY = b"x" * 300
PAUSE_SECONDS = 0.02


class Echo(flight.FlightServerBase):  # type: ignore[misc]
    def do_action(self, context: Any, action: Any) -> list[pa.Buffer]:
        return [action.body]


def serve(directory: str, ready: Connection) -> None:
    """Until the other end of `ready` is closed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{directory}/frames")
    listener.listen()
    threading.Thread(target=answer, args=(listener,), daemon=True).start()
    with Echo(f"grpc+unix://{directory}/flight"):
        ready.send("ready")
        ready.poll(None)


def answer(listener: socket.socket) -> None:
    channel, _ = listener.accept()
    while True:
        frames.send(channel, frames.receive(channel, len(BODY)))


def microseconds(call: Callable[[], object], repeats: int, pause: float) -> str:
    """Median and 95th percentile."""
    taken = []
    for _ in range(repeats):
        time.sleep(pause)
        start = time.perf_counter()
        call()
        taken.append(1e6 * (time.perf_counter() - start))
    return f"{np.median(taken):8.0f}{np.percentile(taken, 95):8.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=500)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as directory:
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(directory, theirs), daemon=True)
        process.start()
        ours.recv()
        channel = socket.socket(socket.AF_UNIX)
        channel.connect(str(Path(directory) / "frames"))
        client = flight.FlightClient(f"grpc+unix://{directory}/flight")
        ways: dict[str, Callable[[], object]] = {
            "frames": lambda: (frames.send(channel, BODY), frames.receive(channel, len(BODY))),
            "Flight": lambda: list(client.do_action(flight.Action("echo", BODY))),
        }
        print(f"{'':<10}{'one after the other':>20}{'after a pause':>18}")
        for name, call in ways.items():
            call()
            found = [microseconds(call, options.repeats, pause) for pause in (0.0, PAUSE_SECONDS)]
            print(f"{name:<12}" + "  ".join(found))
        process.kill()


if __name__ == "__main__":
    main()
