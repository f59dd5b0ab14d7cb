"""`python -m rljob_worker.rewards.running.process REQUESTS RESULTS`: runs rewards for one worker; where they are
confined, a fork of a guardian does. Messages of its pipes are framed as `framing` says.

    <- {"rewards": [{"name", "run", "column", "columns", "options", "access"}, ...]}  once; access null: no service
    -> {"ready": [false, true, ...]}  whether each is async  |  {"refused": "why"}
    <- {"reward": 0, "limit": 5.0, "rows": [[7, {"prompt": ...}], ...]}  one chunk
       with "blobs" behind it: encoded pictures, which rows number in "pictures" and "videos"
    -> {"row": 7, "reward": 1.0, "metrics": {}, "answer": "42"}          as each row is done; `evaluate` has all forms
    -> {"row": 7, "started": true}                                       async only, before its outcome
    -> {"row": 7, ..., "use": {"requests": 1, ...}}                      of a service: what it took since the last

While rows of an async reward run, the worker may send more of the same.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.rewards.evaluate import Row, evaluate, evaluate_async
from rljob_worker.rewards.forms import SHOWN
from rljob_worker.rewards.loading import Description, Loaded, is_async, load
from rljob_worker.rewards.service import Service
from rljob_worker.sandbox.guardian.beginning import begin_alone
from rljob_worker.sandbox.guardian.framing import Results, receive_message

CONCURRENT_ROWS = 64
"""Rows of an async reward in flight per process."""


ChunkMessage = dict[str, Any]


class RewardServer:
    """Loaded rewards and the loop that async ones run in, kept between chunks."""

    def __init__(self, rewards: list[Description], requests: int, results: Results) -> None:
        self._rewards = rewards
        self._requests = requests
        self._loaded = [load(reward) for reward in rewards]
        self._results = results
        self._loop = asyncio.Runner()

    @property
    def asynchronous(self) -> list[bool]:
        return [is_async(loaded.function) for loaded in self._loaded]

    def run(self, chunk: ChunkMessage) -> ChunkMessage | None:
        """Every row of one chunk, results sent as they come. The next chunk; None when the worker has closed the
        pipe."""
        index = chunk["reward"]
        function, options = self._loaded[index].function, self._rewards[index]["options"]
        if is_async(function):
            return self._loop.run(self._run_async(self._loaded[index], options, chunk))
        for at, row in self._rows(chunk):
            self._results.send({"row": at, **evaluate(function, row, options)})
        return receive_message(self._requests)

    def _rows(self, chunk: ChunkMessage) -> list[tuple[int, Row]]:
        blobs = [bytes(blob) for blob in chunk.get("blobs", ())]
        return [(at, self._row(chunk["reward"], row, blobs)) for at, row in chunk["rows"]]

    def _row(self, index: int, row: dict[str, Any], blobs: Sequence[bytes]) -> Row:
        row = {**row, **{name: [blobs[number] for number in row[name]] for name in SHOWN if name in row}}
        column = self._rewards[index]["column"]
        return Row(row, reference=row[column]) if column is not None and column in row else Row(row)

    async def _run_async(self, loaded: Loaded, options: dict[str, Any], chunk: ChunkMessage) -> ChunkMessage | None:
        """This chunk, and those of the same reward that come while its rows run; what comes after them."""
        service = loaded.service
        free = asyncio.Semaphore(CONCURRENT_ROWS if service is None else min(CONCURRENT_ROWS, service.most_rows))

        async def one(at: int, row: Row, limit: float) -> None:
            came = time.monotonic()
            async with free:
                if service is not None:
                    service.note_row(time.monotonic() - came)
                self._results.send({"row": at, "started": True})
                outcome = await evaluate_async(loaded.function, row, options, limit)
                self._results.send({"row": at, **outcome, **_use(service)})

        index, running = chunk["reward"], set[asyncio.Task[None]]()
        coming: ChunkMessage | None = chunk
        while coming is not None and coming["reward"] == index:
            running |= {asyncio.ensure_future(one(at, row, coming["limit"])) for at, row in self._rows(coming)}
            arrival = asyncio.ensure_future(_readable(self._requests))
            while running and not arrival.done():
                done, _ = await asyncio.wait({arrival, *running}, return_when=asyncio.FIRST_COMPLETED)
                running -= done
            arrival.cancel()
            await asyncio.wait({arrival})
            coming = receive_message(self._requests)
        return coming


def _use(service: Service | None) -> dict[str, Any]:
    return {} if service is None else {"use": asdict(service.take_use())}


async def _readable(descriptor: int) -> None:
    """Until there is something to read, or the other end is closed."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


def serve(requests: int, results: Results) -> None:
    """Load the rewards, then answer chunks until the worker closes the pipe."""
    hello = receive_message(requests)
    if hello is None:
        return
    try:
        server = RewardServer(hello["rewards"], requests, results)
    except InvalidJob as error:
        results.send({"refused": str(error)})
        return
    results.send({"ready": server.asynchronous})
    chunk = receive_message(requests)
    while chunk is not None:
        chunk = server.run(chunk)


if __name__ == "__main__":
    begin_alone(int(sys.argv[1]), int(sys.argv[2]), serve)
