"""`Heard`: the newest version of each job that an event told of."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_operator.vocabulary.key import Key


class Heard:
    """Grows with events, and forgets jobs that were deleted."""

    def __init__(self) -> None:
        self._versions: dict[Key, int] = {}

    @property
    def versions(self) -> Mapping[Key, int]:
        return self._versions

    def of(self, key: Key) -> int | None:
        """The job's; None for one that is gone, or was never told of."""
        return self._versions.get(key)

    def take(self, key: Key, version: int, deleted: bool) -> bool:
        """An event told of a job; whether that is news."""
        if deleted:
            self._versions.pop(key, None)
            return True
        is_news = version > self._versions.get(key, 0)
        if is_news:
            self._versions[key] = version
        return is_news
