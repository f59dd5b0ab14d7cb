"""What stays on a machine while the attempts of a run come and go."""

import contextlib
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_worker.local.family.reaper import start_reaper

MAX_TEMPORARY_PATH = 60
"""Of 107 bytes for a socket's path, `/rljob-abcdefgh/abcdefghijkl-12345-123.sock` takes 44."""
MAX_TEMPORARY_PATH_OF_SERVICES = 24
"""Ray's sockets take 83: `/rljob-abcdefgh/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store`."""


@dataclass(frozen=True, slots=True)
class Household:
    """Of one run."""

    scratch: Path
    """Has a short path."""
    mark: str
    """In the environment of everybody who belongs to the run's attempts here."""
    services_mark: str
    """In that of its services, which outlive an attempt."""
    lifeline: int
    """The read end of a pipe whose write end this process alone holds."""


@contextlib.contextmanager
def household(room: int = MAX_TEMPORARY_PATH) -> Iterator[Household]:
    """Nobody of it, and no file of its scratch directory, outlives the block or this process. room: characters that the
    system's own directory for such files may have."""
    marks = secrets.token_hex(16), secrets.token_hex(16)
    with _scratch(marks, room) as scratch, _lifeline() as lifeline:
        yield Household(scratch, *marks, lifeline)


@contextlib.contextmanager
def _scratch(marks: Sequence[str], room: int) -> Iterator[Path]:
    """The reaper removes it, whatever becomes of this process."""
    is_short = len(tempfile.gettempdir()) <= room
    scratch = tempfile.mkdtemp(prefix="rljob-", dir=None if is_short else "/tmp")
    reaper = start_reaper(scratch, marks)
    try:
        yield Path(scratch)
    finally:
        assert reaper.stdin is not None
        reaper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            reaper.wait(20)


@contextlib.contextmanager
def _lifeline() -> Iterator[int]:
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)
