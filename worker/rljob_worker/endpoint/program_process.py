"""Runs an agent's program inside a confined process of its own, and says how it ended.

What it prints is read as it comes, and the end of it kept: a program that prints much more than it may is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

TAIL_BYTES = 1 << 14
"""What is kept of each stream."""
READ_BYTES = 1 << 16
TASK_FILE = "task.json"
PYTHON = "python"
"""A command that begins with this means the worker's own interpreter, and what it can import."""
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


async def run_program(
    command: Sequence[str],
    variables: Mapping[str, str],
    places: Mapping[str, str],
    task: Mapping[str, Any],
    folder: str | None,
    most_bytes: int,
) -> dict[str, Any]:
    """Run a program to its end. variables: of its environment. places: what stands in the command for `{name}`.
    task: goes into a file, which RLJOB_TASK_FILE names. folder: that it begins in. most_bytes: that it may print.

    Gives `code`, `output` and `errors` (the last of each), `num_bytes` printed, and `why` it could not be started.
    """
    path = os.path.abspath(TASK_FILE)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(task, file, ensure_ascii=False)
    words = [filled(word, {**places, "task_file": path}) for word in command]
    environment = program_environment(words[0], {**variables, "RLJOB_TASK_FILE": path})
    if words[0] == PYTHON:
        words[0] = sys.executable
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except (OSError, ValueError) as error:
        return {"code": None, "output": "", "errors": "", "num_bytes": 0, "why": f"{words[0]}: {error}"}
    return await _followed(process, most_bytes)


def filled(word: str, places: Mapping[str, str]) -> str:
    """A word of a command with values for the `{names}` that are known; other braces stay."""
    return _PLACE.sub(lambda match: places.get(match.group(1), match.group()), word)


def program_environment(program: str, variables: Mapping[str, str]) -> dict[str, str]:
    """All variables of the program's environment: a program that is not the worker's interpreter does not see what that
    one imports."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or program == PYTHON}
    path = os.pathsep.join([os.path.dirname(sys.executable), inherited.get("PATH", os.defpath)])
    direct = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return {**inherited, **direct, "PATH": path, **variables}


class _Printed:
    """What both streams have together, and the end of each."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.num_bytes = most_bytes, 0

    async def read(self, stream: asyncio.StreamReader, process: asyncio.subprocess.Process) -> str:
        tail = b""
        while data := await stream.read(READ_BYTES):
            self.num_bytes += len(data)
            tail = (tail + data)[-TAIL_BYTES:]
            if self.num_bytes > self.most_bytes:
                _kill(process)
        return tail.decode("utf-8", "replace")


async def _followed(process: asyncio.subprocess.Process, most_bytes: int) -> dict[str, Any]:
    assert process.stdout is not None and process.stderr is not None
    printed = _Printed(most_bytes)
    try:
        output, errors = await asyncio.gather(
            printed.read(process.stdout, process), printed.read(process.stderr, process)
        )
        code = await process.wait()
    finally:
        _kill(process)
    return {"code": code, "output": output, "errors": errors, "num_bytes": printed.num_bytes, "why": None}


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
