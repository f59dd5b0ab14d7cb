"""A result on storage that thousands of processes share: found by looking, made by one of them.

    look ── there ──▶ done, no lock was touched
      └─ absent ──▶ one process of this host ──▶ one host makes it, the others look until it is there

Locks only save work. What is made is written beside and renamed, and two that make it make the same, so a process that
has no lock to trust makes it alone: where the storage knows no locks, and where a machine that is gone holds one for
ever. A maker that is alive shows it by touching the lock's file. The others watch for a change and time the silence
themselves: no two clocks are compared.

What is made is written piece by piece and mapped when it is read: a process holds as little of it as it looks at.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rljob_worker.errors import StorageError

LOOK_SECONDS = 1.0
"""Between two looks of a host that waits for another."""

SILENCE_SECONDS = 180.0
"""How long a maker may show no life, at least; shared storage may show a change a minute late."""

BEAT_SECONDS = 10.0
"""Between two signs of life."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_DIGEST_BYTES = hashlib.sha256().digest_size

Make = Callable[["Beat"], Iterable[bytes]]
"""Makes what is to be kept, in pieces of any size."""


class Beat:
    """Called again and again by a maker that makes progress; touches the lock's file."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._last = -BEAT_SECONDS

    def __call__(self) -> None:
        if time.monotonic() - self._last >= BEAT_SECONDS:
            self._last = time.monotonic()
            with suppress(OSError):  # a sign that fails costs work, not the result
                os.utime(self._lock)


class LockWatch:
    """How long a lock's file has not changed, as this process saw it."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._seen: int | None = None
        self._since = 0.0
        # not all hosts at once: the first that loses patience shows life to the others
        self._limit = SILENCE_SECONDS * random.uniform(1, 2)

    def is_silent(self) -> bool:
        """Look once; whether nothing has changed for too long."""
        seen = self._lock.stat().st_mtime_ns
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since > self._limit


def find_or_make(place: Path, make: Make) -> memoryview:
    """The bytes kept at `place`, mapped; what is absent or damaged is made and kept.

    Raises StorageError for a place that cannot be read or written, and what `make` raises.
    """
    with _storage(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        content = _read(place)
    if content is None:
        with _alone_on_host(place):
            content = _await_or_make(place, make)
    return content


def _await_or_make(place: Path, make: Make) -> memoryview:
    lock = Path(f"{place}.lock")
    watch, beat = LockWatch(lock), Beat(lock)
    while True:
        with _tried(lock) as ours:
            with _storage(place):
                os.listdir(place.parent)  # a network file system remembers what was absent until the folder is read
                result, alone = _read(place), ours or watch.is_silent()
            if result is None and alone:
                beat()
                _write(place, make(beat))
                with _storage(place):
                    result = _read(place)
            if result is not None:
                return result
        time.sleep(LOOK_SECONDS)


@contextmanager
def _alone_on_host(place: Path) -> Iterator[None]:
    """One process of this host at a time, on the host's own disk; any number on a host that has no place for a lock."""
    name = hashlib.sha256(str(place.absolute()).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"rljob-{os.getuid()}"
    with ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            file = stack.enter_context((folder / f"{name}.lock").open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _tried(lock: Path) -> Iterator[bool]:
    """Whether the lock is ours for this while; it is everybody's where the storage knows no locks."""
    with _storage(lock):
        file = lock.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except OSError as error:
            ours = error.errno in _NO_LOCKS
        yield ours


def _read(place: Path) -> memoryview | None:
    """What is kept; None where there is nothing, or something else."""
    try:
        with place.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (FileNotFoundError, ValueError):  # nothing, or an empty file, which cannot be mapped
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:  # replaced on the server while it was read here
            return None
        raise
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return body if hashlib.sha256(body).digest() == digest else None


def _write(place: Path, pieces: Iterable[bytes]) -> None:
    """Beside, then renamed: a reader, or a killed writer, never leaves half a file."""
    # process ids repeat from pod to pod
    partial = place.with_name(f"{place.name}.{secrets.token_hex(8)}.partial")
    with _storage(place):
        file = partial.open("xb")
    try:
        digest = hashlib.sha256()
        file.seek(_DIGEST_BYTES)
        for piece in pieces:  # outside of `_storage`: an error of the maker is its own
            digest.update(piece)
            with _storage(place):
                file.write(piece)
        with _storage(place):
            file.seek(0)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
            # what another made in the meantime stays: others have it mapped, and a network file system takes the pages
            # of a replaced file away
            if _read(place) is None:
                os.replace(partial, place)
    finally:
        with suppress(OSError):
            file.close()
        partial.unlink(missing_ok=True)


@contextmanager
def _storage(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"the data cache {place.parent} cannot be read or written: {error}") from error
