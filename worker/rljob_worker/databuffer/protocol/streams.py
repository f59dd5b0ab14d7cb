"""Streams of bytes between data buffers: on a connection of their own a ticket, then portions until all is said.

    caller      introduction               ticket                                          ticket ...
    data buffer              Done, or a              Coming, its bytes, Coming, ..., Over
                             TurnedAway

What is said is a frame each (`frames`); the bytes of a portion follow its frame as they are, from the arena of one end
to the arena of the other. `Failed` stands in the place of the next portion, or of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_worker.databuffer.protocol.worker_side import Answer, Failed

MAX_PLACES = 1024
"""Of one call to the system: IOV_MAX of Linux."""


class Coming(Answer, frozen=True, kw_only=True):
    """So many bytes follow."""

    head: bytes
    """What they are."""
    num_bytes: int


class Over(Answer, frozen=True, kw_only=True):
    """That was all that the ticket asked for."""


StreamAnswer = Coming | Over | Failed


class Portion(Protocol):
    """Some bytes of a stream, which are read before the next portion is."""

    @property
    def head(self) -> bytes: ...

    @property
    def num_bytes(self) -> int: ...

    def into(self, places: Sequence[memoryview]) -> None:
        """Bring the bytes to where they belong: places for exactly as many, filled one after the other."""


@dataclass(frozen=True, slots=True)
class Held:
    """A portion whose bytes lie here."""

    head: bytes
    places: Sequence[memoryview]

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.places))

    def into(self, places: Sequence[memoryview]) -> None:
        left = Places(places)
        for source in self.places:
            while len(source):
                count = min(len(source), len(left.first))
                left.first[:count] = source[:count]
                left.went(count)
                source = source[count:]


Take = Callable[[Portion], None]
"""Brings a portion to where it belongs."""


class Places:
    """Bytes in several places, the first of which are done with."""

    def __init__(self, places: Sequence[memoryview]) -> None:
        self._places = [place for place in places if len(place)]
        self._done = 0

    def __bool__(self) -> bool:
        """Whether some are left."""
        return self._done < len(self._places)

    @property
    def first(self) -> memoryview:
        return self._places[self._done]

    @property
    def next(self) -> list[memoryview]:
        """As many as one call takes."""
        return self._places[self._done : self._done + MAX_PLACES]

    def went(self, count: int) -> None:
        """So many bytes more are done with."""
        while self and count >= len(self.first):
            count -= len(self.first)
            self._done += 1
        if count:
            self._places[self._done] = self.first[count:]
