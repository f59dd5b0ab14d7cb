"""Decoded pictures of a process: each is made once while it is in use, some ahead by threads."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

CACHE_BYTES = 256 << 20
"""Bytes of decoded pictures that stay: 157 of 756 x 756."""

THREADS = 4
"""Threads that decode ahead; Pillow's decoders run without the interpreter's lock."""


class Sized(Protocol):
    """What is kept of a picture."""

    @property
    def nbytes(self) -> int: ...


Kept = TypeVar("Kept", bound=Sized)


class PixelCache(Generic[Kept]):
    """What is made of pictures by digest, what was used longest ago dropped first.

    A picture that one thread makes is waited for by others. Threads that read ahead are daemons, and end when nothing
    is left to be made. An error is not kept: who asks for the picture makes it again, and gets it.
    """

    def __init__(self, most_bytes: int = CACHE_BYTES, threads: int = THREADS) -> None:
        self._most_bytes, self._most_threads = most_bytes, threads
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry[Kept]] = OrderedDict()
        self._ahead: deque[tuple[bytes, _Entry[Kept]]] = deque()
        self._num_bytes = self._num_threads = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the pictures that stay."""
        return self._num_bytes

    def get(self, digest: bytes, make: Callable[[], Kept]) -> Kept:
        """The pixels of a picture, by `make` where they are not there. Raises what `make` does."""
        with self._lock:
            entry = self._entries.setdefault(digest, _Entry(make))
            self._entries.move_to_end(digest)
        return self._made(digest, entry)

    def begin(self, pictures: Iterable[tuple[bytes, Callable[[], Kept]]]) -> None:
        """Make pictures, each named by its digest, in threads."""
        with self._lock:
            for digest, make in pictures:
                if digest not in self._entries:
                    self._entries[digest] = entry = _Entry(make)
                    self._ahead.append((digest, entry))
            num_new = min(self._most_threads - self._num_threads, len(self._ahead))
            self._num_threads += max(0, num_new)
        for _ in range(num_new):
            threading.Thread(target=self._work, name="pictures-ahead", daemon=True).start()

    def _made(self, digest: bytes, entry: _Entry[Kept]) -> Kept:
        try:
            pixels = entry.pixels()
        except BaseException:
            with self._lock:
                if self._entries.get(digest) is entry:
                    del self._entries[digest]
            raise
        with self._lock:
            if not entry.is_counted and self._entries.get(digest) is entry:
                entry.is_counted = True
                self._num_bytes += pixels.nbytes
                self._drop_oldest(keep=entry)
        return pixels

    def _drop_oldest(self, keep: _Entry[Kept]) -> None:
        for digest, entry in list(self._entries.items()):
            if self._num_bytes <= self._most_bytes:
                return
            if entry.is_counted and entry is not keep:
                self._num_bytes -= entry.nbytes
                del self._entries[digest]

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._ahead:
                    self._num_threads -= 1
                    return
                digest, entry = self._ahead.popleft()
            with suppress(Exception):  # raised again for who asks for the picture
                self._made(digest, entry)


class _Entry(Generic[Kept]):
    """One picture, made under its own lock."""

    def __init__(self, make: Callable[[], Kept]) -> None:
        self._make: Callable[[], Kept] | None = make
        self._pixels: Kept | None = None
        self._lock = threading.Lock()
        self.is_counted = False

    @property
    def nbytes(self) -> int:
        return 0 if self._pixels is None else self._pixels.nbytes

    def pixels(self) -> Kept:
        with self._lock:
            if self._pixels is None:
                assert self._make is not None, "what has no pixels can be made"
                self._pixels = self._make()
                self._make = None  # it holds the encoded bytes
            return self._pixels
