"""Pictures of an episode that wait until it is over: a bounded number of them, evenly spaced."""

from __future__ import annotations

SHOWN_FRAMES = 32
"""Pictures of a video that a person is shown, at most."""
SPARE = 8
"""How many times as many pictures as an encoder reads are kept: those that it reads are then at most a sixteenth of
their distance from where they would be among all."""


class VideoFrames:
    """The pictures of one episode, of which every second one goes whenever there are too many."""

    def __init__(self, most: int) -> None:
        """most: pictures that are kept besides the last one."""
        self._most, self._every, self._number = most, 1, 0
        self._kept = list[bytes]()
        self._last: bytes | None = None

    def add(self, picture: bytes) -> None:
        """The next picture, encoded."""
        self._last = picture
        if self._number % self._every == 0:
            self._kept.append(picture)
        if len(self._kept) > self._most:
            self._kept, self._every = self._kept[::2], 2 * self._every
        self._number += 1

    def pictures(self) -> list[bytes]:
        """Those that were kept, and the last one."""
        is_last_kept = self._number and (self._number - 1) % self._every == 0
        return self._kept if self._last is None or is_last_kept else [*self._kept, self._last]


def evenly(number: int, wanted: int) -> list[int]:
    """Places of `wanted` of so many frames, from the first to the last one, evenly spaced."""
    return [round(at * (number - 1) / max(1, wanted - 1)) for at in range(wanted)]
