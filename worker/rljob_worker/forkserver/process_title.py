"""What `ps` and /proc tell of a fork: the kernel shows the memory where a program's arguments and environment began."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

_STAT = Path("/proc/self/stat")
_ARG_START = 45
"""Number of the field in /proc/self/stat, counted behind the name; arg_end, env_start and env_end follow."""


def appear_as(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show `command`, and of the variables that this process began with the new values that are as long as the old.

    Equal length keeps every variable in its place: the C library hands out pointers into this memory.
    """
    if not _STAT.exists():
        return
    fields = _STAT.read_text().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[_ARG_START : _ARG_START + 4])
    if arg_start and env_start:
        _write(arg_start, shown_arguments(command, arg_end - arg_start))
        before = ctypes.string_at(env_start, env_end - env_start)
        _write(env_start, shown_environment(before, environment))


def shown_arguments(command: Sequence[str], size: int) -> bytes:
    """`size` bytes: the arguments, each ended by a zero byte, filled up with zeros.

    Where they are too long the program goes without its folder, then words go from the front: the module stands last.
    """
    shorter = [(Path(command[0]).name, *command[1:]), *(command[first:] for first in range(1, len(command)))]
    texts = [b"".join(os.fsencode(argument) + b"\0" for argument in words) for words in (command, *shorter)]
    text = next((text for text in texts if len(text) <= size), texts[0][: size - 1])
    return text.ljust(size, b"\0")


def shown_environment(before: bytes, environment: Mapping[str, str]) -> bytes:
    """`NAME=value` entries as they were, with new values where the length allows."""
    return b"\0".join(_shown(entry, environment) for entry in before.split(b"\0"))


def _shown(entry: bytes, environment: Mapping[str, str]) -> bytes:
    name, equals, value = entry.partition(b"=")
    new = os.fsencode(environment.get(os.fsdecode(name), "")) if equals else b""
    return name + equals + new if new and len(new) == len(value) else entry


def _write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))
