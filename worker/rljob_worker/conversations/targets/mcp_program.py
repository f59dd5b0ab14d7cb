"""The transport of the Model Context Protocol to a confined program: a line of JSON for each message."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from rljob_worker.sandbox.calls.programs import Program
from rljob_worker.sandbox.guardian.framing import Lines

READ_BYTES = 1 << 16


@asynccontextmanager
async def program_streams(program: Program, most_bytes: int) -> AsyncIterator[tuple[Any, Any]]:
    """Streams from and to a program, as the SDK's client takes them. most_bytes: of a message of the
    program's; one that is longer ends the connection."""
    answers, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    requests, unsent = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks, answers, received, requests, unsent:
        tasks.start_soon(_read, program, answers, most_bytes)
        tasks.start_soon(_write, program, unsent, answers)
        yield received, requests
        tasks.cancel_scope.cancel()


async def _read(program: Program, into: Any, most_bytes: int) -> None:
    lines = Lines()
    async with into:
        while data := await _some(program.output):
            for line in lines.take(data):
                await into.send(_message(line))
            if lines.num_waiting_bytes > most_bytes:
                return


async def _some(descriptor: int) -> bytes:
    """What there is to read; nothing at its end."""
    while True:
        await anyio.wait_readable(descriptor)
        try:
            return os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            continue


async def _write(program: Program, messages: Any, answers: Any) -> None:
    """Messages as lines; a program that does not read any more has ended."""
    async for message in messages:
        left = memoryview(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        while left:
            await anyio.wait_writable(program.input)
            try:
                left = left[os.write(program.input, left) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                await answers.aclose()
                return


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:  # such as what a server prints
        return error
